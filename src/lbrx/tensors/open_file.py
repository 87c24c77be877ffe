"""Open files: mapped as a whole if possible, shared by the storages of their tensors.

Before the engine touches a chunk of a mapped file, it checks the size of the file, and it reads in
``system.guarded_reads()``. A truncated file then raises an error instead of killing the process.
"""

from __future__ import annotations

import fcntl
import io
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from lbrx.base import system
from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import FileError, TruncatedError, UsageError

Bytes: TypeAlias = npt.NDArray[np.uint8]
FileSource: TypeAlias = "str | os.PathLike[str] | IO[Any] | int"
Access = Literal["normal", "sequential", "random"]
_LEAST_OPENED_BYTES = 256 << 10  # fewer are copied from the mapping, which takes less time than opening the file


@dataclass(frozen=True, slots=True)
class MmapOptions:
    """How a mapped file will be read. Options change the speed of reads, never their results.

    ``read_ahead`` starts to read the bytes into the file cache and returns at once. ``populate`` reads them and maps
    their pages before it returns, so that the first use does not wait for the disk. ``access`` tells the system what
    to read around a page that is not in memory: more than usual (``"sequential"``), nothing (``"random"``), or its
    default (``"normal"``).

    >>> MmapOptions(access="sequential").populate
    False
    """

    read_ahead: bool = False
    populate: bool = False
    access: Access = "normal"

    def __post_init__(self) -> None:
        if self.access not in get_args(Access):
            raise UsageError(f"unknown access {self.access!r}; expected one of {', '.join(get_args(Access))}")


class FileIdentity(NamedTuple):
    """Device and inode tell files apart. Size and time of the last change tell the versions of a file apart."""

    device: int
    inode: int
    nbytes: int
    changed_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileIdentity:
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)

    def is_same_file(self, status: os.stat_result) -> bool:
        """Whether a status is that of the same file, whatever its version."""
        return (status.st_dev, status.st_ino) == (self.device, self.inode)


class OpenFile:
    """A file that its tensors share. It is mapped as a whole if possible.

    The descriptor of a mapped file is closed, so that a model may have more shards than a process may open files.
    """

    __slots__ = (
        "__weakref__",
        "_descriptor",
        "_full_path",
        "_view",
        "address",
        "file_bytes",
        "identity",
        "path",
        "pinned",
    )

    def __init__(self, source: FileSource) -> None:
        self._descriptor: int | None
        self.path, self._descriptor = _own_descriptor(source)
        self._full_path = os.path.abspath(self.path)
        status = os.fstat(self._descriptor)
        self.file_bytes, self.identity = status.st_size, FileIdentity.of(status)
        mapped = system.map_readonly(self._descriptor, 0, self.file_bytes, self.path)
        self.pinned = None if mapped is None else system.PinnedMapping(mapped, str(self.path))
        self._view: Bytes | None = None if mapped is None else np.frombuffer(mapped, np.uint8)
        self.address: int | None = None if self._view is None else self._view.ctypes.data
        if mapped is not None and isinstance(source, (str, os.PathLike)):
            os.close(self._descriptor)
            self._descriptor = None

    def read_at(self, offset: int, length: int) -> Bytes:
        if offset < 0 or length < 0 or offset + length > self.file_bytes:
            raise TruncatedError(
                f"{self.path}: cannot read bytes {offset} to {offset + length}; the file has {self.file_bytes}"
            )
        if self._view is not None:
            self.check_unchanged()
            return self._view[offset : offset + length]
        buffer = np.empty(length, np.uint8)
        self.read_into(offset, buffer)
        return buffer

    def read_into(self, offset: int, buffer: Bytes) -> None:
        """Read at an offset into a buffer. Thread-safe."""
        if self._view is not None and buffer.size < _LEAST_OPENED_BYTES:
            self._copy(offset, buffer)
            return
        with self.opened() as descriptor:
            if descriptor is not None:
                system.pread_into(descriptor, buffer, offset, self.path)
            else:
                self._copy(offset, buffer)

    def _copy(self, offset: int, buffer: Bytes) -> None:
        with system.guarded_reads():
            buffer[:] = self.read_at(offset, buffer.size)

    @contextmanager
    def opened(self) -> Iterator[int | None]:
        """Open the file for a ``with`` block. None if its path no longer leads to it; the mapping can still be read."""
        if self._descriptor is not None:
            yield self._descriptor
            return
        try:
            descriptor = os.open(self._full_path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            yield None
            return
        try:
            yield descriptor if self.identity.is_same_file(os.fstat(descriptor)) else None
        finally:
            os.close(descriptor)

    def apply(self, options: MmapOptions, offset: int, nbytes: int) -> None:
        """Prepare a range of the file for the reads that the options announce."""
        if not isinstance(options, MmapOptions):
            raise UsageError(f"options is {options!r}; expected MmapOptions(...)")
        with self.opened() as descriptor:
            if self.pinned is not None:
                self.pinned.expect(options.access, offset, nbytes)
            elif descriptor is not None:
                system.expect_access(descriptor, options.access, offset, nbytes)
            if descriptor is not None and (options.read_ahead or (options.populate and self.pinned is None)):
                system.read_ahead(descriptor, offset, nbytes)
        if options.populate and self.pinned is not None:
            self.check_unchanged()
            with system.guarded_reads():
                self.pinned.populate(offset, nbytes)

    def check_unchanged(self) -> None:
        """Raise if the file became shorter since it was opened. Touching its pages would kill the process.

        A file that was removed or replaced keeps its bytes while it is mapped.
        """
        if self.pinned is not None and self.pinned.is_lost:
            raise TruncatedError(f"{self.path}: the file became shorter while it was read")
        try:
            status = os.stat(self._full_path if self._descriptor is None else self._descriptor)
        except OSError:
            return
        if status.st_size < self.file_bytes and self.identity.is_same_file(status):
            raise TruncatedError(
                f"{self.path}: the file had {self.file_bytes} bytes when it was opened, but has {status.st_size} now"
            )

    def __del__(self) -> None:
        descriptor = getattr(self, "_descriptor", None)
        if descriptor is not None:
            os.close(descriptor)

    def __deepcopy__(self, _memo: object) -> OpenFile:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the path and the identity of the file, not its descriptor."""
        path = Path(self._full_path)
        try:
            is_here = FileIdentity.of(os.stat(path)) == self.identity
        except OSError:
            is_here = False
        if not is_here:
            raise UsageError(f"{self.path}: cannot be pickled, because its path no longer leads to the open file")
        return _reopened, (path, self.identity)


def _reopened(path: Path, identity: FileIdentity) -> OpenFile:
    file = OpenFile(path)
    if file.identity[1:] != identity[1:]:  # another machine may have another number for the device
        raise FileError(f"{path}: this is not the file that was pickled; it was replaced or changed since")
    return file


def _own_descriptor(source: FileSource) -> tuple[Path, int]:
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        return path, _seekable(path, system.open_read(path))
    number = _descriptor_of(source)
    name = getattr(source, "name", None)
    path = Path(name) if isinstance(name, str) else Path(f"<descriptor {number}>")
    try:
        if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY:
            raise FileError(f"{path}: is open for writing only; expected a file that is open for reading")
        return path, _seekable(path, os.dup(number))
    except OSError as error:
        raise system.file_error(error, path, "use this descriptor") from error


def _descriptor_of(source: object) -> int:
    """Return the descriptor of an open file, whose buffered bytes are written first."""
    if isinstance(source, int) and not isinstance(source, bool):
        if source < 0:
            raise UsageError(f"cannot map descriptor {source}; expected at least 0")
        return source
    expected = "expected a path, an open binary file or a descriptor"
    try:
        source.flush()  # type: ignore[attr-defined]
        number: int = source.fileno()  # type: ignore[attr-defined]
    except (AttributeError, io.UnsupportedOperation) as error:  # files in memory have no descriptor
        found = f"an object of type {type(source).__name__}"
        raise UsageError(f"cannot map {found}, which is not a file; {expected}") from error
    except OSError as error:
        raise system.file_error(error, getattr(source, "name", "file"), "write its buffered bytes") from error
    except ValueError as error:
        raise UsageError(f"cannot map a file that is closed; {expected}") from error
    return number


def _seekable(path: Path, descriptor: int) -> int:
    """Return the descriptor. For a pipe or socket, return that of an unnamed temporary file with all its bytes."""
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode) or stat.S_ISBLK(mode):
        return descriptor
    if stat.S_ISDIR(mode):
        os.close(descriptor)
        raise FileError(f"{path}: is a directory; expected a file")
    with os.fdopen(descriptor, "rb") as stream, tempfile.TemporaryFile() as spool:
        shutil.copyfileobj(stream, spool, 1 << 20)
        spool.flush()
        return os.dup(spool.fileno())


def check_range(path: object, file_bytes: int, offset: int, nbytes: int) -> None:
    """Raise if a range of bytes is outside a file."""
    if offset < 0 or nbytes < 0 or offset + nbytes > file_bytes:
        raise FileError(f"{path}: cannot read bytes {offset} to {offset + nbytes}; the file has {file_bytes}")
