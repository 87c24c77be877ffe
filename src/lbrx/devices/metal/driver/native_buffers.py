"""Buffers of an Apple GPU: memory that it shares with the CPU, and mapped pages that are buffers without a copy."""

from __future__ import annotations

import ctypes
import itertools
import weakref
from typing import Any

import numpy as np

from lbrx.base.system import format_bytes
from lbrx.devices.metal.driver.buffers import SharedMemory

SHARED = 0  # MTLResourceStorageModeShared


class NativeBuffer(SharedMemory):
    """An MTLBuffer in memory that CPU and GPU share."""

    def __init__(self, handle: Any, nbytes: int, *, read_only: bool = False) -> None:
        memory = np.frombuffer(handle.contents().as_buffer(max(1, nbytes)), np.uint8)
        super().__init__(memory.ctypes.data, nbytes, read_only=read_only)
        self.handle = handle

    def fit(self, nbytes: int) -> None:
        self.check_fit(nbytes)
        self.nbytes = nbytes

    def release(self) -> None:
        self.check_idle("released")
        self.handle = None


class MappedPages:
    """Makes buffers over pages that are mapped already, and keeps the pages until Metal frees the buffer.

    A buffer may live longer than its Python object, because the GPU still reads it. Metal says through the buffer's
    deallocator when it is freed; only then may the pages be unmapped.

    From macOS 15 on buffers can be in a residency set: the GPU keeps their pages ready between command buffers.
    """

    def __init__(self, metal: Any, device: Any, queue: Any) -> None:
        self.refused: str | None = None  # why Metal did not take pages the last time
        self._device = device
        self._kept: dict[int, tuple[object, int]] = {}  # pages and their bytes by number of the buffer
        self._numbers = itertools.count()
        self._residency = _residency_set(metal, device, queue)

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers that Metal has not freed."""
        return sum(nbytes for _, nbytes in tuple(self._kept.values()))

    @property
    def has_residency_set(self) -> bool:
        return self._residency is not None

    def wrap(self, address: int, nbytes: int, keep_alive: object, *, resident: bool) -> NativeBuffer | None:
        """A read-only buffer over the pages, or None where Metal does not take them: virtual Macs give no buffer, or
        one of no bytes."""
        memory = (ctypes.c_char * nbytes).from_address(address)
        number, kept = next(self._numbers), self._kept
        kept[number] = (keep_alive, nbytes)

        def unkeep(_address: int, _nbytes: int) -> None:
            kept.pop(number, None)

        handle = self._device.newBufferWithBytesNoCopy_length_options_deallocator_(memory, nbytes, SHARED, unkeep)
        self.refused = self._why_refused(handle, address, nbytes)
        if self.refused is not None:
            unkeep(address, nbytes)
            return None
        buffer = NativeBuffer(handle, nbytes, read_only=True)
        handle.setLabel_(f"lbrx: {format_bytes(nbytes)} of mapped pages")
        if resident and self._residency is not None:
            self._keep_resident(buffer)
        return buffer

    def _why_refused(self, handle: Any, address: int, nbytes: int) -> str | None:
        if handle is None:
            return f"no buffer for {nbytes} mapped bytes"
        length = int(handle.length())
        if length < nbytes:
            return f"a buffer of {length} bytes for {nbytes} mapped bytes"
        is_there = NativeBuffer(handle, nbytes).address == address
        return None if is_there else "PyObjC copied mapped pages instead of passing them on"

    def _keep_resident(self, buffer: NativeBuffer) -> None:
        residency, handle = self._residency, buffer.handle
        residency.addAllocation_(handle)
        residency.commit()
        residency.requestResidency()
        weakref.finalize(buffer, _remove, residency, handle).atexit = False


def _remove(residency: Any, handle: Any) -> None:
    residency.removeAllocation_(handle)
    residency.commit()


def _residency_set(metal: Any, device: Any, queue: Any) -> Any:
    """A residency set that belongs to the queue, or None before macOS 15."""
    if not hasattr(device, "newResidencySetWithDescriptor_error_"):
        return None
    descriptor = metal.MTLResidencySetDescriptor.alloc().init()
    made, _ = device.newResidencySetWithDescriptor_error_(descriptor, None)
    if made is not None:
        queue.addResidencySet_(made)
    return made
