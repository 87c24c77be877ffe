"""Upload files to a bucket: large files in parts, with retries, and checked afterwards."""

from __future__ import annotations

from pathlib import Path

from lbrx.errors import FileError, UsageError
from lbrx.files.remote.filesystem import RemoteState, attempt, filesystem, fresh_state_of
from lbrx.files.remote.paths import RemotePath
from lbrx.files.remote.settings import remote_settings

_MAX_PARTS = 9_000  # S3 allows ten thousand
_PARALLEL_PARTS = 4
_SLOWEST_BYTES_PER_SECOND = 1 << 20


def check_writable(target: RemotePath) -> None:
    """Raise if this scheme does not support writing."""
    if target.scheme in ("http", "https"):
        raise UsageError(f"{target}: cannot be written over {target.scheme}; expected a bucket, such as s3://")


def upload(source: Path, target: RemotePath) -> RemoteState:
    """Upload a file and return the state that the service reports.

    A multipart upload becomes visible when it is complete; a failed upload leaves nothing behind.
    """
    nbytes = source.stat().st_size
    options = {}
    if target.scheme == "s3":
        part_bytes = max(remote_settings.part_bytes, -(-nbytes // _MAX_PARTS))
        options = {"chunksize": part_bytes, "max_concurrency": _PARALLEL_PARTS}

    def put() -> RemoteState:
        _put(source, target, nbytes, options)
        state = fresh_state_of(target)
        if state.nbytes != nbytes:
            raise OSError(f"{state.nbytes} of {nbytes} bytes arrived")
        return state

    return attempt(target, "be uploaded", put)


def _put(source: Path, target: RemotePath, nbytes: int, options: dict[str, int]) -> None:
    """Upload once; abort if it takes much longer than on a slow connection, because a service may never answer."""
    remote = filesystem(target.scheme)
    if not remote.async_impl:
        remote.put_file(str(source), target.url, **options)
        return
    from fsspec.asyn import sync

    sync(remote.loop, remote._put_file, str(source), target.url, timeout=allowed_seconds(nbytes), **options)


def allowed_seconds(nbytes: int) -> float:
    """How long the upload of so many bytes may take.

    >>> allowed_seconds(2 * _SLOWEST_BYTES_PER_SECOND) - allowed_seconds(0)
    2.0
    """
    return 2 * remote_settings.timeout_seconds + nbytes / _SLOWEST_BYTES_PER_SECOND


def remove(target: RemotePath) -> None:
    """Remove a file if it exists."""
    if target.exists():
        attempt(target, "be removed", lambda: filesystem(target.scheme).rm_file(target.url))


def check_apart(target: RemotePath, inputs: list[RemotePath]) -> None:
    """Raise if an input is in the output directory: a bucket has no rename to keep it until the end."""
    for path in inputs:
        if target in (path, *path.parents):
            raise FileError(f"{path}: is an input in the directory of the output; expected different directories")
