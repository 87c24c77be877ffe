"""What the buffers of all drivers share: memory with an address, and the rules of its use."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from lbrx.base.system import page_bytes
from lbrx.devices.metal.driver import Bytes, Submission
from lbrx.devices.metal.driver.errors import MetalError
from lbrx.devices.metal.driver.forks import ForkGuard
from lbrx.errors import UsageError


class SharedMemory:
    """Bytes at an address; ``last_use`` is the work that touched them last."""

    def __init__(self, address: int, nbytes: int, *, read_only: bool = False) -> None:
        self.address = address
        self.nbytes = self.capacity_bytes = nbytes
        self.read_only = read_only
        self.last_use: Submission | None = None
        self._guard = ForkGuard()

    def view(self) -> Bytes:
        """The bytes as the CPU sees them; the view keeps the buffer alive."""
        self._guard.check()
        memory: Any = (ctypes.c_uint8 * self.nbytes).from_address(self.address)
        memory.owner = self
        view = np.frombuffer(memory, np.uint8)
        view.flags.writeable = not self.read_only
        return view

    def check_fit(self, nbytes: int) -> None:
        """Raise unless the buffer can be used anew for ``nbytes``."""
        if self.read_only or not 0 <= nbytes <= self.capacity_bytes:
            memory = "read-only pages" if self.read_only else "a buffer"
            raise UsageError(f"{nbytes} bytes do not fit into {memory} of {self.capacity_bytes} bytes")
        self.check_idle("used anew")

    def check_idle(self, what: str) -> None:
        """Raise if a kernel may still use the buffer."""
        if self.last_use is not None and not self.last_use.done:
            raise MetalError(f"a buffer of {self.nbytes} bytes was {what} while a kernel may still use it")


def check_pages(address: int, nbytes: int) -> None:
    """Raise a UsageError unless memory can be a buffer without a copy: it must consist of whole pages.

    >>> check_pages(16384 * 5, 16384 * 2)
    """
    if address % page_bytes() or nbytes % page_bytes() or not nbytes:
        raise UsageError(
            f"a buffer without a copy needs whole pages of {page_bytes()} bytes, "
            f"but {nbytes} bytes at address {address:#x} were given"
        )
