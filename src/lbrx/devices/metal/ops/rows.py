"""softmax, rms_norm and layer_norm along the last axis, summed in f32.

A thread adds every ``threads``-th element, so a sum of n elements is within (n / threads + 16) 2**-24 of the sum of
their magnitudes.
"""

from __future__ import annotations

import struct

from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.context.profiler import Work
from lbrx.devices.metal.ops.arrays import DeviceArray
from lbrx.devices.metal.ops.launching import (
    SIMD_WIDTH,
    Grid,
    check_shape,
    float_number,
    launch,
    nbytes_of,
    output,
)
from lbrx.errors import DTypeError, ShapeError

_MOST_THREADS = 512  # of a threadgroup: every GPU can run these kernels with so many
_ELEMENTS_PER_THREAD = 4
_FLOPS_PER_ELEMENT = {"softmax": 5, "rms_norm": 4, "layer_norm": 7}


def softmax(context: MetalContext, x: DeviceArray, *, out: DeviceArray | None = None) -> DeviceArray:
    """exp(x) / sum of exp(x) along the last axis.

    >>> import numpy as np
    >>> from lbrx.devices.metal.ops.arrays import download, upload
    >>> context = MetalContext.open("emulated")
    >>> download(context, softmax(context, upload(context, np.zeros((1, 4), np.float32))))
    array([[0.25, 0.25, 0.25, 0.25]], dtype=float32)
    """
    return _over_rows(context, "softmax", x, None, None, 0.0, False, out)


def rms_norm(
    context: MetalContext,
    x: DeviceArray,
    weight: DeviceArray,
    eps: float = 1e-6,
    add_one: bool = False,
    *,
    out: DeviceArray | None = None,
) -> DeviceArray:
    """x / sqrt(mean of x**2 + eps) times a weight, or times 1 + weight with ``add_one``."""
    return _over_rows(context, "rms_norm", x, weight, None, eps, add_one, out)


def layer_norm(
    context: MetalContext,
    x: DeviceArray,
    weight: DeviceArray,
    bias: DeviceArray | None = None,
    eps: float = 1e-5,
    *,
    out: DeviceArray | None = None,
) -> DeviceArray:
    """(x - mean) / sqrt(variance + eps) times a weight, plus a bias."""
    return _over_rows(context, "layer_norm", x, weight, bias, eps, False, out)


def _over_rows(
    context: MetalContext,
    kernel: str,
    x: DeviceArray,
    weight: DeviceArray | None,
    bias: DeviceArray | None,
    eps: float,
    add_one: bool,
    out: DeviceArray | None,
) -> DeviceArray:
    if not x.shape:
        raise ShapeError(f"{kernel} takes an array with at least one axis, not a single number")
    columns = x.shape[-1]
    check_shape(weight, (columns,), f"the weight of {kernel}")
    check_shape(bias, (columns,), f"the bias of {kernel}")
    if weight is not None and bias is not None and weight.dtype != bias.dtype:
        raise DTypeError(f"{kernel}: the weight is {weight.dtype}, but the bias {bias.dtype}; expected the same")
    result = output(context, out, x.dtype, x.shape, kernel)
    if not x.size:
        return result
    constants: dict[str, bool | int | float] = {
        "x_type": float_number(x, f"the input of {kernel}"),
        "out_type": float_number(result, f"the output of {kernel}"),
    }
    if weight is not None:
        constants["weight_type"] = float_number(weight, f"the weight of {kernel}")
        constants |= {"add_one": add_one} if kernel == "rms_norm" else {"has_bias": bias is not None}
    rows = x.size // columns
    operands = (x, result, struct.pack("<If", columns, eps), weight, bias)
    work = Work(nbytes_of(x, weight, bias, result), _FLOPS_PER_ELEMENT[kernel] * x.size, f"{rows}x{columns}")
    launch(context, "rows", kernel, constants, operands, Grid((rows,), (_threads(columns),)), work)
    return result


def _threads(columns: int) -> int:
    """Threads of a row: whole simdgroups, some elements for each."""
    simdgroups = -(-columns // (SIMD_WIDTH * _ELEMENTS_PER_THREAD))
    return SIMD_WIDTH * max(1, min(simdgroups, _MOST_THREADS // SIMD_WIDTH))
