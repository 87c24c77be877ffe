"""Storage of bytes: in memory, in a mapped file, or in a file that is read piece by piece.

A Storage is a run of read-only bytes. Kernels use its ``address`` or, if it has none, copies of windows (``read_at``).
Before the engine touches a chunk of a mapped file, it checks the size of the file. A truncated file then raises an
error instead of killing the process.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from lbrx.base import system
from lbrx.errors import FileError, ShapeError, TruncatedError, UsageError
from lbrx.memory.resident import resident_window
from lbrx.tensors.dtype import DType
from lbrx.tensors.dtype import dtype as dtype_of
from lbrx.tensors.shape import Shape

Bytes = npt.NDArray[np.uint8]
_LEAST_OPENED_BYTES = 256 << 10  # fewer are copied from the mapping, which takes less time than opening the file


class Storage(Protocol):
    """A run of read-only bytes."""

    @property
    def nbytes(self) -> int:
        """The size in bytes."""

    @property
    def device(self) -> str:
        """The name of the device that has the bytes."""

    @property
    def address(self) -> int | None:
        """The address of the bytes in this process, or None if they have to be read."""

    def read_at(self, offset: int, length: int) -> Bytes:
        """Return the bytes of a window, without a copy if they are in memory."""

    def read_into(self, offset: int, buffer: Bytes) -> None:
        """Copy the bytes at ``offset`` into a buffer."""


class ReadStorage(ABC):
    """Base of storages without an address: their bytes are read or computed piece by piece."""

    __slots__ = ()
    device = "cpu"
    address = None

    @abstractmethod
    def read_into(self, offset: int, buffer: Bytes) -> None:
        """Write the bytes at ``offset`` into a buffer."""

    def read_at(self, offset: int, length: int) -> Bytes:
        buffer = np.empty(length, np.uint8)
        self.read_into(offset, buffer)
        return buffer


class CpuStorage:
    """Bytes in memory.

    >>> CpuStorage.from_array(np.array([1.0, 2.0], np.float32)).nbytes
    8
    """

    __slots__ = ("_bytes", "address")
    device = "cpu"

    def __init__(self, data: Bytes) -> None:
        self._bytes = data
        self.address: int | None = data.ctypes.data

    @classmethod
    def from_array(cls, array: npt.NDArray[Any]) -> CpuStorage:
        """Share the memory of a C-contiguous array."""
        if not array.flags.c_contiguous:
            raise ShapeError(f"an array of shape {array.shape} with strides {array.strides} is not C-contiguous")
        return cls(array.reshape(-1).view(np.uint8))

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return self._bytes.size

    def read_at(self, offset: int, length: int) -> Bytes:
        """Return a window of bytes, without a copy."""
        return self._bytes[offset : offset + length]

    def read_into(self, offset: int, buffer: Bytes) -> None:
        """Copy a window of bytes into a buffer."""
        buffer[:] = self._bytes[offset : offset + buffer.size]

    def __reduce__(self) -> tuple[Any, ...]:
        return CpuStorage, (self._bytes,)  # a copy has its own address


def drop_behind(storage: Storage, start: int, length: int) -> None:
    """Drop the pages of a window that is no longer needed, if the storage is mapped."""
    if isinstance(storage, MmapStorage) and storage.file.pinned is not None:
        resident_window.touched(storage.file.pinned, storage.offset + start, length)


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

    def __init__(self, source: Path | str | IO[bytes] | int) -> None:
        self._descriptor: int | None
        self.path, self._descriptor = _own_descriptor(source)
        self._full_path = os.path.abspath(self.path)
        status = os.fstat(self._descriptor)
        self.file_bytes, self.identity = status.st_size, FileIdentity.of(status)
        mapped = system.map_readonly(self._descriptor, 0, self.file_bytes, self.path)
        self.pinned = None if mapped is None else system.PinnedMapping(mapped)
        self._view: Bytes | None = None if mapped is None else np.frombuffer(mapped, np.uint8)
        self.address: int | None = None if self._view is None else self._view.ctypes.data
        if mapped is not None and isinstance(source, (str, Path)):
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
            buffer[:] = self.read_at(offset, buffer.size)
            return
        with self.opened() as descriptor:
            if descriptor is not None:
                system.pread_into(descriptor, buffer, offset, self.path)
            else:
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

    def check_unchanged(self) -> None:
        """Raise if the file became shorter since it was opened. Touching its pages would kill the process.

        A file that was removed or replaced keeps its bytes while it is mapped.
        """
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


def _own_descriptor(source: Path | str | IO[bytes] | int) -> tuple[Path, int]:
    if isinstance(source, (str, Path)):
        path = Path(source)
        return path, _seekable(path, system.open_read(path))
    number = source if isinstance(source, int) else source.fileno()
    name = getattr(source, "name", None)
    path = Path(name) if isinstance(name, str) else Path(f"<descriptor {number}>")
    return path, _seekable(path, os.dup(number))


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


class MmapStorage:
    """A run of bytes of a file, mapped if the system supports it, else read on demand.

    Several storages share one open file. Any offset is allowed. Alignment only matters for ``as_array``, which copies
    bytes that are not aligned for NumPy.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "raw"
    >>> _ = path.write_bytes(np.arange(4, dtype=np.float32).tobytes())
    >>> MmapStorage.from_file(path, offset=4, length=8).as_array("f32", (2,))
    array([1., 2.], dtype=float32)
    """

    __slots__ = ("_offset", "file", "nbytes")
    device = "cpu"

    def __init__(self, file: OpenFile, offset: int, nbytes: int) -> None:
        check_range(file.path, file.file_bytes, offset, nbytes)
        self.file = file
        self.nbytes = nbytes
        self._offset = offset

    @classmethod
    def from_file(cls, source: Path | str | IO[bytes] | int, offset: int = 0, length: int | None = None) -> MmapStorage:
        """Map a path, an open binary file or a descriptor. ``length`` None means up to the end."""
        file = OpenFile(source)
        return cls(file, offset, file.file_bytes - offset if length is None else length)

    @property
    def address(self) -> int | None:
        """The address of the first byte, or None if the file is not mapped."""
        return None if self.file.address is None else self.file.address + self._offset

    @property
    def offset(self) -> int:
        """The offset of the storage in its file."""
        return self._offset

    def read_at(self, offset: int, length: int) -> Bytes:
        """Return the bytes of a window: a view of the mapping, or a copy if there is none. Thread-safe."""
        if offset < 0 or length < 0 or offset + length > self.nbytes:
            raise FileError(
                f"{self.file.path}: bytes {offset} to {offset + length} are outside a storage of {self.nbytes} bytes"
            )
        return self.file.read_at(self._offset + offset, length)

    def as_array(self, dtype: DType | str, shape: Shape, offset: int = 0) -> npt.NDArray[Any]:
        """Return an array over the bytes, without a copy if they are mapped and aligned. Packed dtypes raise."""
        row = dtype_of(dtype)
        elements = int(np.prod(shape, dtype=np.int64))
        if row.is_packed:
            raise ShapeError(f"{row} elements share bytes and have no array view; use a Tensor")
        window = self.read_at(offset, row.nbytes(elements))
        if window.ctypes.data % row.numpy.alignment:
            window = window.copy()
        return window.view(row.numpy).reshape(shape)

    def read_into(self, offset: int, buffer: Bytes) -> None:
        """Read at an offset into a buffer. Thread-safe."""
        self.file.read_into(self._offset + offset, buffer)
