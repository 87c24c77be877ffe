"""Work that was handed to an Apple GPU, and what its errors mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lbrx.devices.metal.driver import Dispatch
from lbrx.devices.metal.driver.errors import (
    GpuLost,
    GpuOutOfMemory,
    GpuPageFault,
    GpuTimeout,
    KernelFault,
    MetalError,
)
from lbrx.devices.metal.driver.pyobjc import autorelease_pool, error_text

_COMPLETED, _ERROR = 4, 5  # MTLCommandBufferStatus...
_DOMAIN = "MTLCommandBufferErrorDomain"
_REVOKED = "macOS revoked this process's access to the GPU after too many time-outs; start it again"
ERRORS: dict[int, tuple[type[MetalError], str]] = {
    2: (GpuTimeout, "macOS stopped the GPU because it took too long; give less --memory: chunks become smaller"),
    3: (GpuPageFault, "the GPU touched memory that is not mapped; run `lbrx doctor`, and report this"),
    4: (GpuLost, _REVOKED),
    7: (GpuLost, "macOS does not permit this process to use the GPU"),
    8: (GpuOutOfMemory, "the GPU has not enough memory; give less --memory: chunks become smaller"),
    9: (KernelFault, "the GPU was given a buffer that is no longer valid; report this"),
    11: (GpuLost, "the GPU was removed"),
    12: (KernelFault, "the stack of a kernel overflowed; report this"),
}
"""What the codes of MTLCommandBufferError mean to a user; any other code is a KernelFault."""


class NativeSubmission:
    """A committed MTLCommandBuffer. It keeps the dispatches, and so all buffers and mapped pages, until it is done."""

    def __init__(self, handle: Any, dispatches: Sequence[Dispatch], kernels: str) -> None:
        self._handle = handle
        self._dispatches: tuple[Dispatch, ...] = tuple(dispatches)
        self._kernels = kernels

    @property
    def done(self) -> bool:
        is_done = int(self._handle.status()) >= _COMPLETED
        if is_done:
            self._dispatches = ()
        return is_done

    def wait(self) -> None:
        with autorelease_pool():
            self._handle.waitUntilCompleted()
            failed = int(self._handle.status()) == _ERROR
            error = command_error(self._handle.error(), self._kernels) if failed else None
        self._dispatches = ()
        if error is not None:
            raise error

    def finish(self) -> None:
        """Return when the work is done, well or not."""
        self._handle.waitUntilCompleted()

    @property
    def gpu_seconds(self) -> tuple[float, float]:
        return float(self._handle.GPUStartTime()), float(self._handle.GPUEndTime())


def command_error(error: Any, kernels: str) -> MetalError:
    """The NSError of a command buffer as an error of lbrx."""
    what, text = f"while it ran {kernels}", error_text(error)
    if error is not None and str(error.domain()) == _DOMAIN and int(error.code()) in ERRORS:
        error_class, meaning = ERRORS[int(error.code())]
        return error_class(f"{meaning} ({what}: {text})")
    return KernelFault(f"the GPU stopped {what}: {text}")
