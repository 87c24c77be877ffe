"""The interface to fsspec: file systems by scheme, request retries, and conversion of errors."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from pathlib import PurePosixPath
from typing import Any, TypeVar

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import FileError
from lbrx.files.remote.paths import RemotePath, without_secrets
from lbrx.files.remote.settings import remote_settings

T = TypeVar("T")
_PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "hf": "huggingface_hub", "http": "aiohttp", "https": "aiohttp"}
# The fields that identify the version of a file, by service; the first one present is used.
_VERSION_KEYS = ("ETag", "etag", "generation", "VersionId", "blob_id", "Last-Modified", "LastModified", "created")
_FILE_SUFFIXES = (".safetensors", ".gguf", ".bin", ".pt", ".pth", ".ckpt", ".json", ".txt", ".model", ".jinja")


@dataclass(frozen=True, slots=True)
class RemoteState:
    """The size of a remote file, and a version that changes with its content (empty if the service has none)."""

    nbytes: int
    version: str


def filesystem(scheme: str) -> Any:
    """Return the fsspec file system of a scheme, with our timeouts and without its own retries (see ``attempt``)."""
    return _filesystem(scheme, remote_settings.timeout_seconds)


@cache
def _filesystem(scheme: str, timeout_seconds: float) -> Any:
    try:
        import fsspec

        remote = fsspec.filesystem(scheme, skip_instance_cache=True, **_options(scheme, timeout_seconds))
    except ImportError as error:
        package = _PACKAGES.get(scheme, "fsspec")
        raise FileError(f"{scheme}://: cannot be read without {package}; run: pip install 'lbrx[remote]'") from error
    if scheme == "s3":
        remote.retries = 1
    return remote


def _options(scheme: str, timeout_seconds: float) -> dict[str, Any]:
    if scheme == "s3":
        timeouts = {"connect_timeout": timeout_seconds, "read_timeout": timeout_seconds}
        return {"config_kwargs": {**timeouts, "retries": {"total_max_attempts": 1}}}
    if scheme in ("http", "https"):
        import aiohttp

        limits = aiohttp.ClientTimeout(total=None, sock_connect=timeout_seconds, sock_read=timeout_seconds)
        return {"client_kwargs": {"timeout": limits}}
    return {}


def attempt(path: RemotePath, what: str, action: Callable[[], T]) -> T:
    """Return the result of a request. Temporary errors are retried up to the limit, then raise a ``FileError``."""
    pause_seconds = remote_settings.pause_seconds
    for number in range(1, remote_settings.attempts + 1):
        try:
            return action()
        except Exception as error:  # file systems raise their own errors, HTTP client errors and OSError
            lasting = _lasting(error)
            if lasting is not None:
                raise FileError(f"{path}: {lasting}") from error
            if number == remote_settings.attempts:
                failure = f"{number} attempts failed, the last with {_text(error)}"
                raise FileError(f"{path}: cannot {what}: {failure}") from error
            time.sleep(pause_seconds)
            pause_seconds *= 2
    raise AssertionError("there is at least one attempt")


def _lasting(error: Exception) -> str | None:
    """Return the reason if an error is permanent, so that retries are useless, else None."""
    if isinstance(error, FileError):
        return str(error).partition(": ")[2] or str(error)
    if isinstance(error, FileNotFoundError):
        return "no such file or directory"
    if isinstance(error, PermissionError):
        return f"permission denied ({_text(error)})"
    if "NoSuchBucket" in str(error):
        return "no such bucket"
    error_class = type(error).__name__
    if error_class == "FileExpired":
        return "was changed while it was being read; run the command again"
    if error_class in ("NoCredentialsError", "PartialCredentialsError"):
        return f"no credentials were found ({_text(error)})"
    if isinstance(error, NotImplementedError):
        return "this storage does not allow that"
    return None


def _text(error: Exception) -> str:
    first_line = without_secrets(next(iter(str(error).splitlines()), ""))
    return f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__


def _info(path: RemotePath) -> dict[str, Any] | None:
    remote = filesystem(path.scheme)

    def ask() -> dict[str, Any] | None:
        try:
            info: dict[str, Any] = remote.info(path.url)
        except FileNotFoundError as error:
            _raise_other_cause(error)
            return None
        return info

    info = attempt(path, "be looked up", ask)
    if info is not None and not (isinstance(info, dict) and isinstance(info.get("type"), str)):
        raise FileError(f"{path}: the service describes it as {info!r:.60}; expected a type and a size")
    return info


def _raise_other_cause(error: FileNotFoundError) -> None:
    """Raise the real cause: over HTTP every failure is reported as a missing file, with the real error as its cause."""
    response = getattr(error.__cause__, "response", None)  # of hub errors
    status = getattr(error.__cause__, "status", getattr(response, "status_code", None))
    if status in (401, 403):
        raise PermissionError(f"status {status}") from error
    if error.__cause__ is not None and status not in (404, 410):
        raise OSError(f"{type(error.__cause__).__name__}: {error.__cause__}") from error


def file_type_of(path: RemotePath) -> str | None:
    """Return ``"file"``, ``"directory"``, or None if nothing exists there.

    A web server does not distinguish files and directories; there the suffix of the name decides.
    """
    if path.scheme in ("http", "https") and PurePosixPath(path.name.partition("?")[0]).suffix not in _FILE_SUFFIXES:
        return "directory"
    info = _info(path)
    return None if info is None else info["type"]


def state_of(path: RemotePath) -> RemoteState:
    """Return the size and version of a file, from the cache if known; a missing file is an error."""
    info = _info(path)
    if info is None:
        raise FileError(f"{path}: no such file or directory")
    if info["type"] != "file" or info.get("size") is None:
        expected = "a size" if info["type"] == "file" else "a file"
        raise FileError(f"{path}: has no size; expected {expected}, read from a service that takes ranges")
    version = next((str(info[key]) for key in _VERSION_KEYS if info.get(key)), "")
    size = info["size"]
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise FileError(f"{path}: the service reports the size {size!r:.60}; expected an integer")
    return RemoteState(size, version)


def fresh_state_of(path: RemotePath) -> RemoteState:
    """Return the size and version of a file as the service reports them now."""
    forget_listings(path.parent)
    return state_of(path)


def forget_listings(path: RemotePath) -> None:
    """Drop cached listings of a directory, so that the service is asked again."""
    remote = filesystem(path.scheme)
    if path.scheme != "memory":
        remote.invalidate_cache(path.url)
        if path.scheme != "hf" or len(path.parts) > 3:  # the hub has no listings above repositories
            remote.invalidate_cache(path.parent.url)


def child_names(path: RemotePath) -> list[str]:
    """Return the sorted names in a directory."""
    remote = filesystem(path.scheme)
    listed: Any = attempt(path, "be listed", lambda: remote.ls(path.url, detail=False))
    if not isinstance(listed, list | tuple) or not all(isinstance(entry, str) for entry in listed):
        raise FileError(f"{path}: the service lists {listed!r:.60}; expected names")
    names = {entry.rstrip("/").rpartition("/")[2] for entry in listed}
    return sorted(name for name in names if name and name != path.name)
