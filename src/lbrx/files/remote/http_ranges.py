"""Read ranges of files on web servers; each response must be the requested range of the same version of the file."""

from __future__ import annotations

import re
from typing import Any

from lbrx.errors import FileError
from lbrx.files.remote.filesystem import RemoteState, filesystem
from lbrx.files.remote.paths import RemotePath
from lbrx.files.remote.settings import remote_settings

_SLOWEST_BYTES_PER_SECOND = 64 << 10
_NO_RANGES = "The HTTP server doesn't appear to support range requests"


def fetch_range(path: RemotePath, state: RemoteState, offset: int, length: int) -> bytes:
    """Read these bytes of a file version with one request, which is aborted if it takes too long."""
    from fsspec.asyn import sync

    remote = filesystem(path.scheme)
    allowed_seconds = 2 * remote_settings.timeout_seconds + length / _SLOWEST_BYTES_PER_SECOND
    data: bytes = sync(remote.loop, _fetch, remote, path, state, offset, length, timeout=allowed_seconds)
    return data


async def _fetch(remote: Any, path: RemotePath, state: RemoteState, offset: int, length: int) -> bytes:
    session = await remote.set_session()
    options = dict(remote.kwargs)
    headers = {**options.pop("headers", {}), "Range": f"bytes={offset}-{offset + length - 1}"}
    async with session.get(remote.encode_url(path.url), headers=headers, **options) as response:
        response.raise_for_status()
        if _version(response.headers, state.version) != state.version:
            raise FileError(f"{path}: was changed while it was being read; run the command again")
        if response.status != 206 and offset:
            raise ValueError(_NO_RANGES)
        given = re.match(r"bytes (\d+)-(\d+)", response.headers.get("Content-Range", ""))
        if given is not None and (int(given[1]), int(given[2])) != (offset, offset + length - 1):
            raise OSError(f"received bytes {given[1]} to {given[2]} instead of {offset} to {offset + length - 1}")
        pieces, missing = [], length
        while missing and (piece := await response.content.read(missing)):
            pieces.append(piece)
            missing -= len(piece)
    return b"".join(pieces)


def _version(headers: Any, known: str) -> str:
    """Return the version in a response, if the file had one when it was looked up."""
    stated = [headers[name] for name in ("ETag", "Last-Modified") if headers.get(name)]
    return known if not known or not stated or known in stated else str(stated[0])
