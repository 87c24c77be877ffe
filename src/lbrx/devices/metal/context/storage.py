"""MetalStorage: bytes that a GPU can use. CPU and GPU share memory, so the CPU reads them where they are.

Bytes of a mapped file are not copied: the pages around them become a buffer. What is larger than the largest buffer
becomes several buffers that overlap by half, so that any run of up to half of it lies in one of them.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import numpy as np

from lbrx.base.fast_dataclass import dataclass
from lbrx.base.system import page_bytes
from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.context.transfers import transfers
from lbrx.devices.metal.driver import Buffer, BufferBinding
from lbrx.devices.metal.driver.errors import MetalError
from lbrx.engine.destination import MemoryDestination
from lbrx.errors import UsageError
from lbrx.tensors.dtype import DType
from lbrx.tensors.storage import Bytes, MmapStorage, Storage


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


class MetalStorage:
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

    def copy_from_cpu(self, data: Bytes, offset: int = 0) -> None:
        """Put bytes into the storage."""
        if self.is_mapped:
            raise UsageError("the bytes of this storage are those of a mapped file and cannot be written")
        if offset < 0 or offset + data.size > self.nbytes:
            raise UsageError(f"bytes {offset} to {offset + data.size} lie outside a storage of {self.nbytes}")
        self._memory()[offset : offset + data.size] = data
        transfers(self.context).add(copied_bytes=data.size)

    def copy_to_cpu(self) -> Bytes:
        """A copy of the bytes in memory of the CPU."""
        transfers(self.context).add(returned_bytes=self.nbytes)
        return self._memory().copy()


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
