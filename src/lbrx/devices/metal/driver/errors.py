"""Errors of the Metal backend.

LbrxError
├── KernelError
│   └── ShaderError        a shader does not compile, or has no such function
└── MetalError             the device cannot do what was asked
    ├── MetalUnavailable   no Metal on this machine, or no compiler for the emulator
    └── KernelFault        a kernel went wrong while it ran: bounds, race, barrier, time-out, GPU error
"""

from __future__ import annotations

from lbrx.errors import KernelError, LbrxError


class ShaderError(KernelError):
    """A shader does not compile, or has no such function."""


class MetalError(LbrxError):
    """The device cannot do what was asked."""


class MetalUnavailable(MetalError):
    """There is no Metal on this machine, or no compiler for the emulator."""


class KernelFault(MetalError):
    """A kernel went wrong while it ran."""
