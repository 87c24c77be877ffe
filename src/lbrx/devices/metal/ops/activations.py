"""silu, gelu, their gated forms and soft caps, in f32: within 2e-6 of the result, plus 1e-36."""

from __future__ import annotations

import struct
from typing import Literal

from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.context.profiler import Work
from lbrx.devices.metal.ops.arrays import DeviceArray
from lbrx.devices.metal.ops.epilogue import ACTIVATION_NUMBERS, Activation
from lbrx.devices.metal.ops.launching import Grid, check_shape, float_number, launch, nbytes_of, output
from lbrx.errors import UsageError

GeluFormula = Literal["erf", "tanh"]
_THREADS = 256
_ELEMENTS_PER_THREAD = 4
_FLOPS_PER_ELEMENT = 10


def silu(context: MetalContext, x: DeviceArray, *, out: DeviceArray | None = None) -> DeviceArray:
    """x / (1 + exp(-x))

    >>> import numpy as np
    >>> from lbrx.devices.metal.ops.arrays import download, upload
    >>> context = MetalContext.open("emulated")
    >>> download(context, silu(context, upload(context, np.array([0.0, 1.0], np.float32)))).round(4)
    array([0.    , 0.7311], dtype=float32)
    """
    return _elementwise(context, x, "silu", None, None, out)


def gelu(
    context: MetalContext, x: DeviceArray, formula: GeluFormula = "erf", *, out: DeviceArray | None = None
) -> DeviceArray:
    """x times the normal distribution function of x; ``"tanh"`` is the usual approximation of it."""
    return _elementwise(context, x, _gelu(formula), None, None, out)


def silu_mul(
    context: MetalContext, gate: DeviceArray, up: DeviceArray, *, out: DeviceArray | None = None
) -> DeviceArray:
    """silu(gate) * up"""
    return _elementwise(context, gate, "silu", up, None, out)


def gelu_mul(
    context: MetalContext,
    gate: DeviceArray,
    up: DeviceArray,
    formula: GeluFormula = "tanh",
    *,
    out: DeviceArray | None = None,
) -> DeviceArray:
    """gelu(gate) * up"""
    return _elementwise(context, gate, _gelu(formula), up, None, out)


def softcap(context: MetalContext, x: DeviceArray, cap: float, *, out: DeviceArray | None = None) -> DeviceArray:
    """cap tanh(x / cap): close to x where it is small, and never beyond the cap."""
    if not cap > 0:
        raise UsageError(f"the soft cap is {cap}; expected a number above 0")
    return _elementwise(context, x, None, None, cap, out)


def _gelu(formula: GeluFormula) -> Activation:
    if formula not in ("erf", "tanh"):
        raise UsageError(f"there is no gelu of form {formula!r}; expected 'erf' or 'tanh'")
    return "gelu" if formula == "erf" else "gelu_tanh"


def _elementwise(
    context: MetalContext,
    x: DeviceArray,
    activation: Activation | None,
    other: DeviceArray | None,
    cap: float | None,
    out: DeviceArray | None,
) -> DeviceArray:
    name = activation or "softcap"
    check_shape(other, x.shape, f"{name}: what is gated")
    result = output(context, out, x.dtype, x.shape, name)
    if not x.size:
        return result
    constants = {
        "x_type": float_number(x, f"{name}: x"),
        "out_type": float_number(result, f"{name}: the output"),
        "activation": ACTIVATION_NUMBERS[activation],
        "is_gated": other is not None,
        "other_type": float_number(other, f"{name}: what is gated"),
        "has_softcap": cap is not None,
    }
    operands = (x, result, struct.pack("<Qf4x", x.size, cap or 1.0), other)
    work = Work(nbytes_of(x, other, result), _FLOPS_PER_ELEMENT * x.size, f"{name} {x.size}")
    grid = Grid((-(-x.size // _ELEMENTS_PER_THREAD),), (_THREADS,), "threads")
    launch(context, "elementwise", "activation_of", constants, operands, grid, work)
    return result
