"""The public error classes of the Metal backend; ``driver.errors`` defines them and shows their tree."""

from lbrx.devices.metal.driver.errors import (
    GpuLost,
    GpuOutOfMemory,
    GpuPageFault,
    GpuTimeout,
    KernelFault,
    MetalError,
    MetalUnavailable,
    ShaderError,
)

__all__ = [
    "GpuLost",
    "GpuOutOfMemory",
    "GpuPageFault",
    "GpuTimeout",
    "KernelFault",
    "MetalError",
    "MetalUnavailable",
    "ShaderError",
]
