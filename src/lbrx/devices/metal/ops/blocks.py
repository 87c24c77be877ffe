"""Weights to numbers and back: rows looked up, everything decoded, and coding as Q8_0 and Q4_0.

Numbers are bit for bit those of the CPU, rounded once if they are stored as f16 or bf16.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.context.profiler import Work
from lbrx.devices.metal.ops.arrays import (
    BLOCKS,
    FLOAT_NUMBERS,
    DeviceArray,
    DeviceWeight,
    empty,
    upload,
    weight_bytes,
)
from lbrx.devices.metal.ops.launching import Grid, Operand, float_number, launch, nbytes_of, output, uints
from lbrx.errors import DTypeError, ShapeError, UsageError

ENCODABLE = ("q4_0", "q8_0")
_THREADS = 64
_VALUES_PER_THREAD = 8
_LARGEST_ID = 1 << 31


def dequantize(
    context: MetalContext, weight: DeviceWeight, dtype: str = "f32", *, out: DeviceArray | None = None
) -> DeviceArray:
    """The numbers of a weight in any coding."""
    result = output(context, out, dtype, weight.shape, "dequantize")
    rows, columns = weight.shape
    if result.size:
        operands = (weight.values, result, uints(rows, columns), weight.scales, weight.biases)
        work = Work(nbytes_of(weight, result), 2 * result.size, f"{weight.coding} {rows}x{columns}")
        _launch_rows(context, "dequantize", weight, result, operands, rows, work)
    return result


def embedding(
    context: MetalContext,
    ids: npt.ArrayLike,
    weight: DeviceWeight,
    dtype: str = "f32",
    *,
    out: DeviceArray | None = None,
) -> DeviceArray:
    """The rows of a weight [vocabulary, d] in any coding: [..., d] for ids of shape [...]."""
    numbers = np.asarray(ids)
    tokens, columns = weight.shape
    if numbers.dtype.kind not in "iu" and numbers.size:
        raise DTypeError(f"token ids must be integers, not {numbers.dtype}")
    bad = numbers[(numbers < 0) | (numbers >= min(tokens, _LARGEST_ID))]
    if bad.size:
        raise UsageError(f"token id {int(bad[0])} is out of range; the vocabulary has {tokens} tokens")
    result = output(context, out, dtype, (*numbers.shape, columns), "embedding")
    if not result.size:
        return result
    indices = upload(context, numbers.reshape(-1).astype(np.int32))
    operands = (
        weight.values,
        result,
        uints(tokens, columns),
        weight.scales,
        weight.biases,
        indices,
    )
    read_bytes = weight.nbytes // tokens * numbers.size
    work = Work(read_bytes + nbytes_of(indices, result), 2 * result.size, f"{weight.coding} {numbers.size}x{columns}")
    _launch_rows(context, "embedding", weight, result, operands, numbers.size, work)
    return result


def quantize(context: MetalContext, x: DeviceArray, coding: str, *, out: DeviceArray | None = None) -> DeviceWeight:
    """Code a matrix [rows, columns] of whole blocks as ``"q8_0"`` or ``"q4_0"``: the bytes that the CPU makes.

    >>> from lbrx.devices.metal.ops.arrays import download
    >>> context = MetalContext.open("emulated")
    >>> coded = quantize(context, upload(context, np.ones((1, 32), np.float32)), "q8_0")
    >>> download(context, coded.values).size, float(download(context, dequantize(context, coded))[0, 0])
    (34, 0.99993896484375)
    """
    if coding not in ENCODABLE:
        raise UsageError(f"kernels cannot code as {coding!r}; expected one of {', '.join(ENCODABLE)}")
    if len(x.shape) != 2:
        raise ShapeError(f"quantize: an array of shape {x.shape}; expected two axes, rows and columns")
    number = float_number(x, "quantize: x")
    shape = (x.shape[0], x.shape[1])
    values = out or empty(context, "u8", (weight_bytes(coding, shape),))
    if x.size:
        blocks = x.size // BLOCKS[coding][0]
        work = Work(nbytes_of(x, values), 4 * x.size, f"{shape[0]}x{shape[1]}")
        constants = {"x_type": number}
        grid = Grid((blocks,), (_THREADS,), "threads")
        launch(context, "blocks", f"quantize_{coding}", constants, (x, values), grid, work)
    return DeviceWeight(coding, shape, values)


def _launch_rows(
    context: MetalContext,
    kernel: str,
    weight: DeviceWeight,
    out: DeviceArray,
    operands: Sequence[Operand],
    rows: int,
    work: Work,
) -> None:
    constants = {**weight.constants, "out_type": FLOAT_NUMBERS[out.dtype]}
    grid = Grid((-(-weight.shape[1] // _VALUES_PER_THREAD), rows), (_THREADS,), "threads")
    launch(context, "blocks", kernel, constants, operands, grid, work)
