"""Storage of bytes: in memory, in a mapped file, or in a file that is read piece by piece.

A Storage is a run of read-only bytes. Kernels use its ``address`` or, if it has none, copies of windows (``read_at``).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from lbrx.base.system import format_bytes
from lbrx.errors import FileError, ShapeError, UsageError
from lbrx.memory.resident import resident_window
from lbrx.tensors.dtype import DType, DTypeLike
from lbrx.tensors.dtype import dtype as dtype_of
from lbrx.tensors.open_file import Bytes as Bytes
from lbrx.tensors.open_file import FileSource, MmapOptions, OpenFile, check_range
from lbrx.tensors.shape import Shape, checked_number, checked_shape

if TYPE_CHECKING:
    from lbrx.memory.tensor_cache import TensorCache

_NO_OPTIONS = MmapOptions()


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

    @property
    def cache(self) -> TensorCache | None:
        """What keeps decoded or copied elements of the storage, or None (see `lbrx.tensors.cached_storage`)."""

    def read_at(self, offset: int, length: int) -> Bytes:
        """Return the bytes of a window, without a copy if they are in memory."""

    def read_into(self, offset: int, buffer: Bytes) -> None:
        """Copy the bytes at ``offset`` into a buffer."""

    def piece(self, offset: int, nbytes: int) -> Storage:
        """Return a part of the bytes as a storage, without copying them."""


class BytesAsArrays:
    """Arrays over the bytes of a storage that is in memory or mapped."""

    __slots__ = ()
    cache: TensorCache | None = None

    def as_array(self: Storage, dtype: DTypeLike, shape: Shape | int, offset: int = 0) -> npt.NDArray[Any]:
        """Return an array over the bytes from ``offset`` on: a view, or a copy if NumPy cannot align it.

        Packed dtypes raise, because their elements share bytes.

        >>> storage = CpuStorage.from_array(np.arange(6, dtype=np.float32))
        >>> storage.as_array("f32", (2, 2), offset=8).tolist()
        [[2.0, 3.0], [4.0, 5.0]]
        """
        element, sizes, offset = _viewed(dtype), checked_shape(shape), checked_number(offset, "the offset")
        elements = math.prod(sizes)
        nbytes = element.nbytes(elements)
        if offset < 0 or offset + nbytes > self.nbytes:
            raise ShapeError(
                f"an array of {element} and shape {sizes} from byte {offset} needs {nbytes} bytes, "
                f"but {_remaining(self, offset)}"
            )
        window = self.read_at(offset, nbytes)
        if elements and window.ctypes.data % element.numpy.alignment:
            window = window.copy()
        return window.view(element.numpy).reshape(sizes)

    def as_slice(self: Storage, dtype: DTypeLike, start: int = 0, stop: int | None = None) -> npt.NDArray[Any]:
        """Return elements ``start`` to ``stop`` - 1 as a vector; see `as_array`. The default is all elements.

        >>> CpuStorage.from_array(np.arange(6, dtype=np.float32)).as_slice("f32", 2, 4)
        array([2., 3.], dtype=float32)
        """
        element = _viewed(dtype)
        if stop is None:
            if self.nbytes % element.itemsize:
                raise ShapeError(f"a storage of {self.nbytes} bytes does not consist of whole {element} elements")
            stop = self.nbytes // element.itemsize
        start, stop = checked_number(start, "the start"), checked_number(stop, "the stop")
        if not 0 <= start <= stop:
            raise ShapeError(f"a slice cannot go from element {start} to {stop}; expected 0 <= start <= stop")
        return BytesAsArrays.as_array(self, element, (stop - start,), start * element.itemsize)


def _remaining(storage: Storage, offset: int) -> str:
    has = f"the storage has {storage.nbytes}"
    return f"{has}, {storage.nbytes - offset} from there on" if 0 < offset <= storage.nbytes else has


def _viewed(dtype: DTypeLike) -> DType:
    element = dtype_of(dtype)
    if element.is_packed:
        raise ShapeError(f"{element} elements share bytes and have no array view; use a Tensor")
    return element


def check_inside(storage: Storage, offset: int, nbytes: int) -> None:
    """Raise if a range of bytes is outside a storage."""
    if offset < 0 or nbytes < 0 or offset + nbytes > storage.nbytes:
        raise ShapeError(f"bytes {offset} to {offset + nbytes} are outside a storage of {storage.nbytes} bytes")


class ReadStorage(ABC):
    """Base of storages without an address: their bytes are read or computed piece by piece."""

    __slots__ = ()
    device = "cpu"
    address = None
    cache: TensorCache | None = None

    @abstractmethod
    def read_into(self, offset: int, buffer: Bytes) -> None:
        """Write the bytes at ``offset`` into a buffer."""

    def read_at(self, offset: int, length: int) -> Bytes:
        buffer = np.empty(length, np.uint8)
        self.read_into(offset, buffer)
        return buffer

    def piece(self: Storage, offset: int, nbytes: int) -> Storage:
        """Return a part of the bytes, read when they are needed."""
        return StoragePiece(self, offset, nbytes)


class StoragePiece(ReadStorage):
    """A part of a storage without an address."""

    __slots__ = ("_inner", "_offset", "nbytes")

    def __init__(self, inner: Storage, offset: int, nbytes: int) -> None:
        check_inside(inner, offset, nbytes)
        self._inner, self._offset, self.nbytes = inner, offset, nbytes

    def read_into(self, offset: int, buffer: Bytes) -> None:
        self._inner.read_into(self._offset + offset, buffer)


class CpuStorage(BytesAsArrays):
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
        if not isinstance(array, np.ndarray) or array.dtype.hasobject:
            found = f"an array of {array.dtype}" if isinstance(array, np.ndarray) else type(array).__name__
            raise UsageError(f"cannot share the memory of {found}; expected a NumPy array of numbers")
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

    def piece(self, offset: int, nbytes: int) -> Self:
        """Return a part of the bytes, which shares the memory."""
        check_inside(self, offset, nbytes)
        return type(self)(self._bytes[offset : offset + nbytes])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({format_bytes(self.nbytes)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return CpuStorage, (self._bytes,)  # a copy has its own address


def drop_behind(storage: Storage, start: int, length: int) -> None:
    """Drop the pages of a window that is no longer needed, if the storage is mapped."""
    if isinstance(storage, MmapStorage) and storage.file.pinned is not None:
        resident_window.touched(storage.file.pinned, storage.offset + start, length)


class MmapStorage(BytesAsArrays):
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
    def from_file(
        cls, source: FileSource, offset: int = 0, length: int | None = None, options: MmapOptions = _NO_OPTIONS
    ) -> Self:
        """Map a path, an open binary file or a descriptor. ``length`` None means up to the end.

        The file stays mapped until no tensor uses it; its owner may close or remove it.
        """
        file, offset = OpenFile(source), checked_number(offset, "the offset")
        if offset > file.file_bytes:
            raise FileError(f"{file.path}: offset {offset} is past the end; the file has {file.file_bytes} bytes")
        nbytes = file.file_bytes - offset if length is None else checked_number(length, "the length")
        storage = cls(file, offset, nbytes)
        file.apply(options, offset, storage.nbytes)
        return storage

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

    def read_into(self, offset: int, buffer: Bytes) -> None:
        """Read at an offset into a buffer. Thread-safe."""
        self.file.read_into(self._offset + offset, buffer)

    def __repr__(self) -> str:
        return f"MmapStorage({str(self.file.path)!r}, offset={self._offset}, {format_bytes(self.nbytes)})"

    def piece(self, offset: int, nbytes: int) -> MmapStorage:
        """Return a range of the same file."""
        check_inside(self, offset, nbytes)
        return MmapStorage(self.file, self._offset + offset, nbytes)
