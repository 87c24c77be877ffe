"""Plain files: open regular files only, and read them at offsets; remote files are read by ranges."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from lbrx.errors import FileError, FormatError, TruncatedError
from lbrx.files.remote.paths import RangedSource, RemotePath

MAX_READ_BYTES = 1 << 30  # macOS refuses reads of 2 GiB and more


@contextmanager
def open_source(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file for reading; anything else (pipe, device, directory) is an error.

    >>> with open_source(Path(__file__)) as file:
    ...     read_at(file, Path(__file__), 3, 5)
    b'Plain'
    """
    if isinstance(path, RemotePath):
        from lbrx.files.remote.reading import RemoteReader

        yield cast(BinaryIO, RemoteReader(path))
        return
    try:  # O_NONBLOCK: opening a pipe must not wait for its writer
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise _unreachable(path, error) from error
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            file_type = "directory" if stat.S_ISDIR(mode) else "special file"
            raise FileError(f"{path}: is a {file_type}, expected a regular file")
        with open(descriptor, "rb", buffering=0, closefd=False) as file:
            yield file
    finally:
        os.close(descriptor)


def read_soon(paths: Sequence[Path]) -> None:
    """Announce that the headers of these files will be read in order: remote ones are fetched in parallel."""
    remote = [path for path in paths if isinstance(path, RemotePath)]
    if remote:
        from lbrx.files.remote.reading import fetch_heads

        fetch_heads(remote)


def is_directory(path: Path) -> bool:
    """Return whether an existing path is a directory; a path that cannot be accessed is an error.

    >>> is_directory(Path(__file__)), is_directory(Path(__file__).parent)
    (False, True)
    """
    if isinstance(path, RemotePath):
        if not path.exists():
            raise FileError(f"{path}: no such file or directory")
        return path.is_dir()
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except (OSError, ValueError) as error:
        raise _unreachable(path, error) from error


def _unreachable(path: Path, error: OSError | ValueError) -> FileError:
    reason = error.strerror if isinstance(error, OSError) else error  # ValueError: NUL in the path
    return FileError(f"{path}: cannot be opened: {reason}")


def read_text(path: Path) -> str:
    """Return the text of a file in UTF-8.

    >>> "Plain files" in read_text(Path(__file__))
    True
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: byte {error.start} is not UTF-8; expected a text file") from error


def size_of(file: BinaryIO) -> int:
    """Return the length of an open file in bytes.

    >>> with open_source(Path(__file__)) as file:
    ...     size_of(file) > 1000
    True
    """
    if isinstance(file, RangedSource):
        return file.nbytes
    return os.fstat(file.fileno()).st_size


def read_at(file: BinaryIO, path: Path, offset: int, count: int) -> bytes:
    """Read exactly `count` bytes at `offset`, independent of the file position.

    >>> with open_source(Path(__file__)) as file:
    ...     len(read_at(file, Path(__file__), 10, 0))
    0
    """
    if isinstance(file, RangedSource):
        return file.read_range(offset, count)
    pieces: list[bytes] = []
    missing = count
    while missing:
        try:
            piece = os.pread(file.fileno(), min(missing, MAX_READ_BYTES), offset + count - missing)
        except OSError as error:
            raise FileError(f"{path}: cannot be read at byte {offset}: {error.strerror}") from error
        if not piece:
            end = offset + count - missing
            raise TruncatedError(
                f"{path}: ends at byte {end} now, but had at least {offset + count} when it was opened"
            )
        pieces.append(piece)
        missing -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
