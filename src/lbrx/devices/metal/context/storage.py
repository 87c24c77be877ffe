"""MetalStorage: bytes that a GPU can use. CPU and GPU share memory, so the CPU reads them where they are.

Bytes of a mapped file are not copied: the pages around them become a buffer. What is larger than the largest buffer
becomes several buffers that overlap by half, so that any run of up to half of it lies in one of them.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.base.fast_dataclass import dataclass
from lbrx.base.system import format_bytes, page_bytes
from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.context.transfers import transfers
from lbrx.devices.metal.driver import Buffer, BufferBinding
from lbrx.devices.metal.driver.errors import MetalError
from lbrx.engine.destination import MemoryDestination
from lbrx.errors import DTypeError, ShapeError, UsageError
from lbrx.tensors.dtype import DTYPES, DType, DTypeLike
from lbrx.tensors.dtype import dtype as dtype_of
from lbrx.tensors.storage import Bytes, BytesAsArrays, MmapStorage, Storage, check_inside

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class BufferWindow:
    """Bytes ``start`` to ``start + nbytes`` of a storage, in a buffer from ``offset`` on."""

    start: int
    nbytes: int
    buffer: Buffer
    offset: int


def wait_for(context: MetalContext, buffer: Buffer) -> None:
    """Return when the kernels that were recorded with a buffer are done."""
    if buffer.last_use is not None:
        context.commit()
        buffer.last_use.wait()


def wrapped_windows(
    context: MetalContext, storage: MmapStorage, start: int, stop: int, *, resident: bool = False
) -> tuple[BufferWindow, ...] | None:
    """Bytes of a mapped file as buffers over the pages around them, without a copy; None if the device takes no pages.

    ``resident``: kernels will read the bytes often.
    """
    address = storage.address
    assert address is not None
    storage.file.check_unchanged()
    page, largest = page_bytes(), context.info.max_buffer_bytes // page_bytes() * page_bytes()
    first_page = (address + start) // page * page
    end = -(-(address + stop) // page) * page
    windows = []
    for begin in range(first_page, end, max(largest // 2 // page * page, page)):
        nbytes = min(largest, end - begin)
        low, high = max(begin, address + start), min(begin + nbytes, address + stop)
        window = context.windows.wrap(storage.file, begin, nbytes, resident=resident)
        if window is None:
            return None
        windows.append(BufferWindow(low - address, high - low, window.buffer, window.offset + low - begin))
        if begin + nbytes >= end:
            break
    transfers(context).add(wrapped_bytes=stop - start)
    return tuple(windows)


class MetalStorage(BytesAsArrays):
    """A run of bytes in buffers of a device.

    >>> from lbrx.devices.metal.context import MetalContext
    >>> storage = MetalStorage.empty(MetalContext.open("emulated"), 4)
    >>> storage.copy_from_cpu(np.array([1, 2, 3, 4], np.uint8))
    >>> storage.copy_to_cpu().tolist(), storage.device
    ([1, 2, 3, 4], 'metal')
    """

    __slots__ = ("__weakref__", "_owner", "_windows", "context", "nbytes")
    device = "metal"

    def __init__(
        self, context: MetalContext, windows: tuple[BufferWindow, ...], nbytes: int, owner: object = None
    ) -> None:
        self.context = context
        self._owner = owner  # what keeps the buffers
        self.nbytes = nbytes
        self._windows = windows

    @classmethod
    def empty(cls, context: MetalContext, nbytes: int) -> MetalStorage:
        """Memory of the device with unspecified contents; it goes back to the pool when nobody uses it any more."""
        buffer = context.get_buffer(nbytes)
        stored = cls(context, (BufferWindow(0, nbytes, buffer, 0),), nbytes)
        weakref.finalize(stored, context.return_buffer, buffer)
        return stored

    @classmethod
    def from_storage(cls, context: MetalContext, storage: Storage) -> MetalStorage:
        """The bytes of another storage: a mapped file without a copy, anything else with one."""
        if isinstance(storage, MetalStorage) and storage.is_on(context):
            return storage
        if isinstance(storage, MmapStorage) and storage.address is not None and storage.nbytes:
            windows = wrapped_windows(context, storage, 0, storage.nbytes, resident=True)
            if windows is not None:
                return cls(context, windows, storage.nbytes)
        stored = cls.empty(context, storage.nbytes)
        storage.read_into(0, stored._memory())
        transfers(context).add(copied_bytes=storage.nbytes)
        return stored

    def is_on(self, context: MetalContext) -> bool:
        """Whether kernels of a context can use the bytes: contexts may share a device."""
        return self.context.driver is context.driver

    @property
    def is_mapped(self) -> bool:
        """Whether the bytes are pages of a file, which nobody may write."""
        return any(window.buffer.read_only for window in self._windows)

    def binding(self, start: int, stop: int) -> BufferBinding:
        """Bytes of the storage as an argument of a kernel."""
        for window in self._windows:
            if window.start <= start and stop <= window.start + window.nbytes:
                return BufferBinding(window.buffer, window.offset + start - window.start, stop - start)
        raise MetalError(
            f"bytes {start} to {stop} of {self.nbytes} do not lie in one buffer; the largest of this device has "
            f"{self.context.info.max_buffer_bytes}"
        )

    def wait(self) -> None:
        """Return when the bytes are there."""
        for window in self._windows:
            if not window.buffer.read_only:
                wait_for(self.context, window.buffer)

    def _memory(self) -> Bytes:
        """All bytes as the CPU sees them, once they are there; the array keeps the storage alive."""
        self.wait()
        first = self._windows[0]
        memory: Any = (ctypes.c_uint8 * self.nbytes).from_address(first.buffer.view().ctypes.data + first.offset)
        memory.owner = self
        view = np.frombuffer(memory, np.uint8) if self.nbytes else np.empty(0, np.uint8)
        view.flags.writeable = not self.is_mapped
        return view

    @property
    def address(self) -> int | None:
        """The address of the first byte."""
        return int(self._memory().ctypes.data)

    def read_at(self, offset: int, length: int) -> Bytes:
        """Return a window of bytes, without a copy."""
        return self._memory()[offset : offset + length]

    def read_into(self, offset: int, buffer: Bytes) -> None:
        """Copy a window of bytes into a buffer."""
        buffer[:] = self._memory()[offset : offset + buffer.size]

    def piece(self, offset: int, nbytes: int) -> MetalStorage:
        """Return a part of the bytes, in the same buffers."""
        check_inside(self, offset, nbytes)
        windows = []
        for window in self._windows:
            low, high = max(window.start, offset), min(window.start + window.nbytes, offset + nbytes)
            if low < high or (not nbytes and low == high):
                begin = window.offset + low - window.start
                windows.append(BufferWindow(low - offset, high - low, window.buffer, begin))
        return MetalStorage(self.context, tuple(windows), nbytes, owner=self)

    def __repr__(self) -> str:
        return f"MetalStorage({format_bytes(self.nbytes)}{', mapped' if self.is_mapped else ''})"

    def copy_from_cpu(self, array: Array, offset: int | None = None, dtype: DTypeLike | None = None) -> None:
        """Copy the bytes of a contiguous array into the storage.

        Without an ``offset`` in bytes, the array must fill the storage. With a ``dtype``, it must have that dtype.
        """
        check_array(array, dtype)
        if self.is_mapped:
            raise UsageError("this storage has the bytes of a mapped file, which cannot be written")
        self._check_size(array.nbytes, offset)
        start = offset or 0
        self._memory()[start : start + array.nbytes] = array.reshape(-1).view(np.uint8)
        transfers(self.context).add(copied_bytes=array.nbytes)

    def copy_to_cpu(self, out: Array | None = None, offset: int | None = None, dtype: DTypeLike | None = None) -> Array:
        """Copy the bytes into ``out``, or into a new vector of ``dtype`` (u8 if not given), and return it.

        Without an ``offset`` in bytes, ``out`` must have the size of the storage.

        >>> from lbrx.devices.metal.context import MetalContext
        >>> storage = MetalStorage.empty(MetalContext.open("emulated"), 8)
        >>> storage.copy_from_cpu(np.array([1.5, 2.5], np.float32))
        >>> storage.copy_to_cpu(dtype="f32")
        array([1.5, 2.5], dtype=float32)
        """
        if out is None:
            check_inside(self, offset or 0, 0)
            out = self.piece(offset or 0, self.nbytes - (offset or 0)).as_slice(dtype or "u8").copy()
        else:
            check_array(out, dtype)
            if not out.flags.writeable:
                raise UsageError("out is read-only; expected an array that can be written")
            self._check_size(out.nbytes, offset)
            start = offset or 0
            out.reshape(-1).view(np.uint8)[:] = self._memory()[start : start + out.nbytes]
        transfers(self.context).add(returned_bytes=out.nbytes)
        return out

    def _check_size(self, nbytes: int, offset: int | None) -> None:
        if offset is None and nbytes != self.nbytes:
            raise ShapeError(
                f"an array of {nbytes} bytes does not fill a storage of {self.nbytes}; "
                "expected the same size, or an offset to copy a part"
            )
        check_inside(self, offset or 0, nbytes)


def check_array(array: Array, dtype: DTypeLike | None) -> None:
    """Raise unless the bytes of an array are its elements in order, in the byte order of this machine."""
    if not isinstance(array, np.ndarray):
        raise UsageError(f"cannot copy a {type(array).__name__}; expected a NumPy array")
    if dtype is not None and array.dtype != dtype_of(dtype).numpy:
        raise DTypeError(f"an array of {array.dtype} cannot be copied as {dtype_of(dtype)}")
    if array.dtype.kind not in "biuf" and all(array.dtype != known.numpy for known in DTYPES.values()):
        raise DTypeError(f"an array of {array.dtype} has no plain elements to copy")
    if not array.dtype.isnative:
        raise DTypeError(f"an array of {array.dtype.str} has the other byte order; call astype first")
    if not array.flags.c_contiguous:
        raise ShapeError(
            f"an array of shape {array.shape} with strides {array.strides} is not C-contiguous; "
            "call numpy.ascontiguousarray first"
        )


class MetalDestination(MemoryDestination):
    """A result that stays on the device. A pass writes it there and nobody waits."""

    __slots__ = ("_storage", "dtype")
    device = "metal"

    def __init__(self, context: MetalContext, dtype: DType, elements: int) -> None:
        self.dtype = dtype
        self._storage = MetalStorage.empty(context, dtype.nbytes(elements))

    @property
    def storage(self) -> MetalStorage:
        return self._storage

    @property
    def whole(self) -> Bytes:
        """The memory, for a pass that runs on the CPU instead."""
        return self._storage._memory()
