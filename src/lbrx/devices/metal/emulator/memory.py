"""Buffers of the emulated device: they end (or begin) at a page that nothing may touch."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any, Literal

import numpy as np

from lbrx.devices.metal.driver import Bytes, Submission, check_pages
from lbrx.devices.metal.emulator.runtime import runner
from lbrx.devices.metal.errors import MetalError
from lbrx.errors import MemoryBudgetError, UsageError
from lbrx.system import format_bytes, page_bytes

Placement = Literal["end", "start"]
_ALIGNMENT = 16
_CANARY_BYTES = 256  # before and behind a buffer, as far as its pages reach
_POISON = 0xFF  # NaN in every floating-point type: whoever forgets to write an output sees it


class EmulatedBuffer:
    """Guarded memory. What is left of its pages around the contents is watched for writes."""

    def __init__(self, capacity_bytes: int, placement: Placement = "end") -> None:
        base, mapped = ctypes.c_void_p(), ctypes.c_size_t()
        body = runner().msl_allocate(capacity_bytes, ctypes.byref(base), ctypes.byref(mapped))
        if not body:
            raise MemoryBudgetError(f"there is no memory for a buffer of {format_bytes(capacity_bytes)}")
        self.last_use: Submission | None = None
        self.read_only = False
        self.nbytes = self.capacity_bytes = capacity_bytes
        self.mapped_range = (int(base.value or 0), int(mapped.value))
        self._placement = placement
        self._body = (int(body), int(mapped.value) - 2 * page_bytes())
        self._free = weakref.finalize(self, runner().msl_free, base.value, mapped.value)
        self.fit(capacity_bytes)

    def fit(self, nbytes: int) -> None:
        if not 0 <= nbytes <= self.capacity_bytes:
            raise UsageError(f"{nbytes} bytes do not fit into a buffer of {self.capacity_bytes}")
        if self.last_use is not None and not self.last_use.done:
            raise MetalError(f"a buffer of {self.nbytes} bytes was used anew while a kernel may still use it")
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

    def view(self) -> Bytes:
        return _view(self, self.address, self.nbytes)

    def release(self) -> None:
        if self.last_use is not None and not self.last_use.done:
            raise MetalError(f"a buffer of {self.nbytes} bytes was released while a kernel may still use it")
        self._free()


class WrappedBuffer:
    """Pages that are mapped already; ``keep_alive`` holds the mapping."""

    read_only = True

    def __init__(self, address: int, nbytes: int, keep_alive: object) -> None:
        check_pages(address, nbytes)
        self.last_use: Submission | None = None
        self.address, self.nbytes, self.capacity_bytes = address, nbytes, nbytes
        self._keep_alive: object | None = keep_alive

    def fit(self, nbytes: int) -> None:
        raise UsageError(f"mapped pages cannot be used anew as a buffer of {nbytes} bytes")

    def view(self) -> Bytes:
        view = _view(self, self.address, self.nbytes)
        view.flags.writeable = False
        return view

    def release(self) -> None:
        self._keep_alive = None


def _view(owner: object, address: int, nbytes: int) -> Bytes:
    memory: Any = (ctypes.c_uint8 * nbytes).from_address(address)
    memory.owner = owner  # a view keeps its buffer alive
    return np.frombuffer(memory, np.uint8)
