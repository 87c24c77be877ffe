"""Rotary positions: pairs of elements of queries and keys are turned, each by an angle of its own."""

from __future__ import annotations

import numpy.typing as npt

from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.context.profiler import Work
from lbrx.devices.metal.ops.arrays import DeviceArray, upload
from lbrx.devices.metal.ops.launching import Grid, float_number, launch, nbytes_of, output, uints
from lbrx.tensors.rope import RopeFrequencies, RopeStyle, rope_tables

_THREADS = 64
_FLOPS_PER_PAIR = 6


def apply_rope(
    context: MetalContext,
    x: DeviceArray,
    positions: npt.ArrayLike,
    frequencies: RopeFrequencies,
    style: RopeStyle = "neox",
    *,
    out: DeviceArray | None = None,
) -> DeviceArray:
    """Turn queries or keys of shape [..., n, d], where position i of ``positions`` [n] belongs to row i.

    ``"neox"`` pairs elements i and i + dims / 2 of a head, ``"interleaved"`` elements 2 i and 2 i + 1. Elements beyond
    the frequencies' are left as they are. For f32 the result has the bits of the CPU's.
    """
    tables = rope_tables(x.shape, positions, frequencies, style)
    result = output(context, out, x.dtype, x.shape, "rope")
    if not x.size:
        return result
    cosines, sines = (upload(context, table) for table in tables)
    pairs = frequencies.radians.size
    constants = {
        "x_type": float_number(x, "rope: x"),
        "out_type": float_number(result, "rope: the output"),
        "is_interleaved": style == "interleaved",
    }
    rows, columns = x.size // x.shape[-1], x.shape[-1]
    operands = (x, result, uints(columns, pairs, x.shape[-2]), cosines, sines)
    work = Work(nbytes_of(x, cosines, sines, result), _FLOPS_PER_PAIR * rows * pairs, f"{rows}x{columns}")
    grid = Grid((columns - pairs, rows), (_THREADS,), "threads")
    launch(context, "elementwise", "rope", constants, operands, grid, work)
    return result
