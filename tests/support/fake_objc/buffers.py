"""Fake buffers, and what a fake GPU checks before it reads them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from lbrx.base.system import page_bytes
from lbrx.devices.metal.emulator.memory import EmulatedBuffer, WrappedBuffer
from support.fake_objc.runtime import Native, Pointer

if TYPE_CHECKING:
    from support.fake_objc.metal import MTLDevice

_mincore = ctypes.CDLL(None, use_errno=True).mincore
_mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


def is_mapped(address: int, nbytes: int) -> bool:
    """Whether pages are mapped in this process."""
    pages = -(-nbytes // page_bytes())
    return int(_mincore(address, nbytes, (ctypes.c_ubyte * pages)())) == 0


class MTLBuffer(Native):
    """Memory of the fake GPU: its own, or the pages that it was given."""

    def __init__(self, device: MTLDevice, memory: Any, emulated: EmulatedBuffer | WrappedBuffer | None) -> None:
        super().__init__(device.runtime)
        self.device, self.memory, self.emulated = device, memory, emulated
        device.allocated_bytes += self.length()

    def contents(self) -> Pointer:
        return Pointer(self.memory)

    def length(self) -> int:
        return memoryview(self.memory).nbytes

    def dealloc(self) -> None:
        self.device.allocated_bytes -= self.length()

    def check(self) -> None:
        """Raise if the GPU would fault."""
        assert self.references > 0, "the GPU reads a buffer that was freed"


class MappedBuffer(MTLBuffer):
    """A buffer without a copy."""

    def __init__(self, device: MTLDevice, memory: Any, deallocator: Callable[[int, int], None] | None) -> None:
        self.address = ctypes.addressof(memory)
        super().__init__(device, memory, WrappedBuffer(self.address, memoryview(memory).nbytes, None))
        self._deallocator = deallocator
        device.mapped_bytes += self.length()

    def dealloc(self) -> None:
        super().dealloc()
        self.device.mapped_bytes -= self.length()
        if self._deallocator is not None:
            assert self._deallocator(self.address, self.length()) is None

    def check(self) -> None:
        super().check()
        if not is_mapped(self.address, self.length()):
            raise AssertionError("the GPU reads pages that were unmapped")


def new_buffer(device: MTLDevice, nbytes: int) -> MTLBuffer:
    if device.executes:
        emulated = EmulatedBuffer(nbytes)
        memory: Any = (ctypes.c_uint8 * nbytes).from_address(emulated.address)
        return MTLBuffer(device, memory, emulated)
    return MTLBuffer(device, np.zeros(nbytes, np.uint8), None)


class MTLResidencySet(Native):
    """Allocations that stay resident; changes count when they are committed."""

    def __init__(self, device: MTLDevice) -> None:
        super().__init__(device.runtime)
        self.device = device
        self.allocations: list[Native] = []
        self._pending: list[Native] = []

    def addAllocation_(self, allocation: MTLBuffer) -> None:
        self._pending.append(allocation.retain())

    def removeAllocation_(self, allocation: MTLBuffer) -> None:
        self._pending.remove(allocation)
        allocation.release()

    def commit(self) -> None:
        self.allocations = list(self._pending)

    def requestResidency(self) -> None:
        pass
