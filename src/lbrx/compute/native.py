"""Calling compiled kernels of this package on addresses, sizes and numbers."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.errors import KernelError

Floats = npt.NDArray[np.float32]

_KERNELS = "lbrx.compute.kernels"
_DEPENDS = (
    f"{_KERNELS}.wide",
    f"{_KERNELS}.integer_products",
    "lbrx.quants.kernels.vectors",
    "lbrx.quants.kernels.lanes",
)


@cache
def kernel(module: str, function: str, arguments: int) -> Callable[..., None]:
    """A function of a module of ``lbrx.compute.kernels`` over so many int64, compiled when it is first asked for."""
    from lbrx.devices.cpu.kernels import EXCEPTION_PLACE, RESULT_PLACE, native_function

    compiled = native_function(f"{_KERNELS}.{module}", function, arguments, _DEPENDS)

    def call(*given: int) -> None:
        status = compiled(RESULT_PLACE, EXCEPTION_PLACE, *given)
        if status:
            raise KernelError(f"{module}.{function} stopped with status {status}")

    return call


def run(module: str, function: str, *arguments: int) -> None:
    """Run a kernel."""
    kernel(module, function, len(arguments))(*arguments)


def address(array: npt.NDArray[Any]) -> int:
    """Where the first element of an array lies."""
    place: int = array.__array_interface__["data"][0]
    return place


def bits(number: float) -> int:
    """A number as the bits of an f32: how a kernel is given one."""
    with np.errstate(over="ignore"):
        return int(struct.unpack("<I", np.float32(number).tobytes())[0])
