"""Calling compiled kernels of this package on addresses, sizes and numbers."""

from __future__ import annotations

import ctypes
import platform
import struct
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.errors import KernelError

MULTIPLIES_PAIRS = platform.machine() in ("x86_64", "AMD64")
"""Whether products of i16 are faster than those of f32. On Arm they are not, and a Mac has a unit for BLAS."""

_KERNELS = "lbrx.devices.cpu.kernels"


@cache
def compiled(module: str, function: str, arguments: int) -> Any:
    """The compiled code of a function over so many int64.

    ``module`` is in ``lbrx.devices.cpu.kernels``, such as ``"finite"`` or ``"codecs.q4_0"``, or the path of another.
    """
    from lbrx.devices.cpu.build.kernel_cache import native_function

    is_own = "." not in module or module.startswith("codecs.")  # no package is named as that module of Python
    return native_function(f"{_KERNELS}.{module}" if is_own else module, function, arguments)


@cache
def kernel(module: str, function: str, arguments: int) -> Callable[..., None]:
    """The same as a function that raises if it fails."""
    from lbrx.devices.cpu.build.kernel_cache import EXCEPTION_ADDRESS, RESULT_ADDRESS

    native = compiled(module, function, arguments)

    def call(*given: int) -> None:
        status = native(RESULT_ADDRESS, EXCEPTION_ADDRESS, *given)
        if status:
            raise KernelError(f"{module}.{function} stopped with status {status}")

    return call


def codec_kernel(module: str, function: str, arguments: int) -> Callable[..., None]:
    """A function of a codec's kernels: ``module`` is in ``kernels.codecs``, or the path of one of another package."""
    return kernel(_codec_module(module), function, arguments)


def codec_kernel_address(module: str, function: str, arguments: int) -> int:
    """Where the code of such a function is, for another one to call."""
    return code_address(_codec_module(module), function, arguments)


def _codec_module(name: str) -> str:
    return name if "." in name else f"codecs.{name}"


def run(module: str, function: str, *arguments: int) -> None:
    """Run a kernel."""
    kernel(module, function, len(arguments))(*arguments)


@cache
def code_address(module: str, function: str, arguments: int) -> int:
    """Where the code of a kernel lies, for another one to call."""
    from lbrx.devices.cpu.build.kernel_cache import address_of

    return address_of(compiled(module, function, arguments))


def address(array: npt.NDArray[Any]) -> int:
    """Where the first element of an array lies."""
    try:
        writable: Any = array  # most arrays are: this is many times faster
        return ctypes.addressof(ctypes.c_char.from_buffer(writable))
    except (TypeError, ValueError, BufferError):
        value: int = array.__array_interface__["data"][0]
        return value


def bits(number: float) -> int:
    """A number as the bits of an f32: how a kernel is given one."""
    with np.errstate(over="ignore"):
        return int(struct.unpack("<I", np.float32(number).tobytes())[0])
