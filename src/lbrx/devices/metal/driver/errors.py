"""Errors of the Metal backend.

LbrxError
├── KernelError
│   └── ShaderError            a shader does not compile, or has no such function
└── MetalError                 the device cannot do what was asked
    ├── MetalUnavailable       no Metal on this machine, or no compiler for the emulator
    ├── GpuOutOfMemory         the GPU has no memory for what was dispatched; also a MemoryBudgetError
    ├── GpuLost                macOS has taken the GPU away from this process
    └── KernelFault            a kernel went wrong while it ran: bounds, race, barrier, GPU error
        ├── GpuTimeout         macOS stopped it because it took too long
        └── GpuPageFault       it touched memory that is not mapped
"""

from __future__ import annotations

from lbrx.errors import KernelError, LbrxError, MemoryBudgetError


class ShaderError(KernelError):
    """A shader does not compile, or has no such function."""


class MetalError(LbrxError):
    """The device cannot do what was asked."""


class MetalUnavailable(MetalError):
    """There is no Metal on this machine, or no compiler for the emulator."""


class GpuOutOfMemory(MetalError, MemoryBudgetError):
    """The GPU has no memory for what was dispatched."""


class GpuLost(MetalError):
    """macOS has taken the GPU away from this process."""


class KernelFault(MetalError):
    """A kernel went wrong while it ran."""


class GpuTimeout(KernelFault):
    """macOS stopped a kernel because it took too long."""


class GpuPageFault(KernelFault):
    """A kernel touched memory that is not mapped."""
