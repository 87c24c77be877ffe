"""Writing files so that a reader or a crash sees the old file or the new one, whole.

The bytes go into a partial file beside the target, which is flushed and then renamed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lbrx.base import system
from lbrx.base.system.files import StrPath, file_error
from lbrx.errors import FileError


@contextmanager
def partial_file(target: Path) -> Iterator[Path]:
    """An empty file beside the target under a unique name, to fill and rename; removed if it was not renamed."""
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{target.name[:200]}.", suffix=".partial", dir=target.parent)
    except OSError as error:
        raise FileError(f"{target.parent}: cannot be written to: {error.strerror}") from error
    os.close(descriptor)
    try:
        os.chmod(name, 0o644)
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


@contextmanager
def new_directory(target: Path) -> Iterator[Path]:
    """A directory to fill, renamed to the target at the end of the ``with`` block, removed after an error."""
    try:
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))
        partial.chmod(0o755)
    except OSError as error:
        raise FileError(f"{target.parent}: cannot be written to: {error.strerror}") from error
    try:
        yield partial
        system.sync_directory(partial)
        replace(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def replace(partial: StrPath, target: StrPath, *, sync: bool = True) -> None:
    """Rename a finished file or directory, which the caller has flushed; both names are on one file system.

    Without ``sync`` a crash of the machine may undo it.
    """
    try:
        os.replace(partial, target)
    except OSError as error:
        raise file_error(error, target, f"replace by {os.fspath(partial)}") from error
    if sync:
        system.sync_directory(Path(target).parent)


def write_bytes(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Write a file in place: for one inside a directory that is itself still partial."""
    try:
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            if sync:
                system.flush_to_disk(file.fileno(), path)
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {error.strerror}") from error


def write_atomically(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Write a file as a whole.

    >>> path = Path(tempfile.mkdtemp()) / "report.txt"
    >>> write_atomically(path, b"fast")
    >>> path.read_bytes(), len(list(path.parent.iterdir()))
    (b'fast', 1)
    """
    with partial_file(path) as partial:
        write_bytes(partial, data, sync=sync)
        replace(partial, path, sync=sync)


def write_cache(path: Path, data: bytes) -> None:
    """Write an entry of a cache, whose directories are made if missing; do nothing if the cache is not writable."""
    with suppress(OSError, FileError):
        system.make_private(path.parent)
        write_atomically(path, data, sync=False)
