"""Writing files so that a reader or a crash sees the old file or the new one, whole.

The bytes go into a partial file beside the target, which is flushed and then renamed.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lbrx.base import system
from lbrx.base.system import StrPath
from lbrx.errors import FileError

_PARTIAL_NAME = re.compile(r"\..*\.[0-9a-f]{16}\.partial", re.DOTALL)


@contextmanager
def partial_file(target: Path) -> Iterator[Path]:
    """An empty file beside the target under a unique name, to fill and rename; removed if it was not renamed."""
    partial = target.with_name(f".{target.name[:200]}.{secrets.token_hex(8)}.partial")
    os.close(system.open_write(partial, must_be_new=True))
    try:
        yield partial
    finally:
        system.remove_file(partial)


def is_partial_file(path: Path) -> bool:
    """Whether a file has a name of `partial_file`: nothing refers to it after its process has ended."""
    return _PARTIAL_NAME.fullmatch(path.name) is not None


def remove_partial_files(directory: Path) -> None:
    """Remove what killed processes left in a directory. No other process may write into it meanwhile."""
    for path in directory.iterdir():
        if is_partial_file(path):
            system.remove_file(path)


def replace(partial: StrPath, target: StrPath, *, sync: bool = True) -> None:
    """Rename a finished file or directory, which the caller has flushed; both names are on one file system.

    Without ``sync`` a crash of the machine may undo it.
    """
    system.rename(partial, target)
    if sync:
        system.sync_directory(Path(target).parent)


def write_atomically(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Write a file as a whole.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "report.txt"
    >>> write_atomically(path, b"fast")
    >>> path.read_bytes(), len(list(path.parent.iterdir()))
    (b'fast', 1)
    """
    with partial_file(path) as partial:
        system.write_file(partial, data, sync=sync)
        replace(partial, path, sync=sync)


def write_cache(path: Path, data: bytes) -> None:
    """Write an entry of a cache, whose directories are made if missing; do nothing if the cache is not writable."""
    with suppress(FileError):
        system.make_private(path.parent)
        write_atomically(path, data, sync=False)
