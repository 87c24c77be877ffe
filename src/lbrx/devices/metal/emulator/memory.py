"""Buffers of the emulated device: they end (or begin) at pages that nothing may touch."""

from __future__ import annotations

import ctypes
import weakref
from typing import Literal

from lbrx.base.system import format_bytes
from lbrx.devices.metal.driver.buffers import SharedMemory, check_pages
from lbrx.devices.metal.emulator.runtime import runner
from lbrx.errors import MemoryBudgetError

Placement = Literal["end", "start"]
_ALIGNMENT = 16
_CANARY_BYTES = 256  # before and behind a buffer, as far as its pages reach
_POISON = 0xFF  # NaN in every floating-point type: whoever forgets to write an output sees it


class EmulatedBuffer(SharedMemory):
    """Guarded memory. What is left of its pages around the contents is watched for writes."""

    def __init__(self, capacity_bytes: int, placement: Placement = "end") -> None:
        base, mapped = ctypes.c_void_p(), ctypes.c_size_t()
        body = runner().msl_allocate(capacity_bytes, ctypes.byref(base), ctypes.byref(mapped))
        if not body:
            raise MemoryBudgetError(f"there is no memory for a buffer of {format_bytes(capacity_bytes)}")
        super().__init__(int(body), capacity_bytes)
        self.mapped_range = (int(base.value or 0), int(mapped.value))
        self._placement = placement
        self._body = (int(body), int(mapped.value) - 2 * int(runner().msl_guard_bytes()))
        self._free = weakref.finalize(self, runner().msl_free, base.value, mapped.value)
        self.fit(capacity_bytes)

    def fit(self, nbytes: int) -> None:
        self.check_fit(nbytes)
        start, length = self._body
        rounded = -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        self.nbytes = nbytes
        self.address = start + length - rounded if self._placement == "end" else start
        for edge in self._edges():
            runner().msl_fill_canary(*edge)
        self.view()[:] = _POISON

    def _edges(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Address and length of the watched bytes before and behind the contents."""
        start, length = self._body
        before = min(self.address - start, _CANARY_BYTES)
        end = self.address + self.nbytes
        return (self.address - before, before), (end, min(start + length - end, _CANARY_BYTES))

    def intact(self) -> bool:
        """Whether nobody wrote just outside the contents."""
        return all(runner().msl_canary_intact(*edge) for edge in self._edges())

    def protect(self, read_only: bool) -> None:
        runner().msl_protect(*self.mapped_range, int(read_only))

    def release(self) -> None:
        self.check_idle("released")
        self._free()


class WrappedBuffer(SharedMemory):
    """Pages that are mapped already; ``keep_alive`` holds the mapping."""

    def __init__(self, address: int, nbytes: int, keep_alive: object) -> None:
        check_pages(address, nbytes)
        super().__init__(address, nbytes, read_only=True)
        self._keep_alive: object | None = keep_alive

    def fit(self, nbytes: int) -> None:
        self.check_fit(nbytes)  # never: the pages are read-only

    def release(self) -> None:
        self.check_idle("released")
        self._keep_alive = None
