"""linear: activations times a weight as models store it, with a row for every output.

Up to four vectors are multiplied by a kernel that reads the weight once and sums in f32: within (k / 32 + 24) 2**-23 of
the sum of the magnitudes of its products. More of them are the business of `matmul`.
"""

from __future__ import annotations

import math

import numpy as np

from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.context.profiler import Work
from lbrx.devices.metal.context.tuning import chosen, shape_class
from lbrx.devices.metal.driver import GpuFamily
from lbrx.devices.metal.ops.arrays import DeviceArray, DeviceWeight
from lbrx.devices.metal.ops.epilogue import Activation, Epilogue
from lbrx.devices.metal.ops.launching import SIMD_WIDTH, Grid, float_number, launch, nbytes_of, output, uints
from lbrx.devices.metal.ops.matmul import MatrixProduct, multiply
from lbrx.errors import ShapeError

MOST_VECTORS = 4
VECTOR_VARIANTS = ("2", "4", "8", "split4", "split8")  # simdgroups of a threadgroup; sharing rows if split
_ROWS_PER_SIMDGROUP = 4
_SPLIT_BELOW_ROWS = 1024
_SPLIT_FROM_COLUMNS = 2048


def linear(
    context: MetalContext,
    x: DeviceArray,
    weight: DeviceWeight | DeviceArray,
    bias: DeviceArray | None = None,
    *,
    activation: Activation | None = None,
    residual: DeviceArray | None = None,
    out: DeviceArray | None = None,
    out_dtype: str | None = None,
    variant: str | None = None,
) -> DeviceArray:
    """activation(x [..., k] times a weight [m, k], transposed, plus a bias) plus a residual: [..., m].

    The result has the type of x, or ``out_dtype``. ``variant`` is one of VECTOR_VARIANTS, or of those of `matmul`.

    >>> from lbrx.devices.metal.ops.arrays import download, upload
    >>> context = MetalContext.open("emulated")
    >>> weight = upload(context, np.array([[1.0, 2.0], [3.0, 4.0]], np.float32))
    >>> download(context, linear(context, upload(context, np.ones((1, 2), np.float32)), weight))
    array([[3., 7.]], dtype=float32)
    """
    matrix = weight if isinstance(weight, DeviceWeight) else plain_weight(weight)
    rows, columns = matrix.shape
    if not x.shape or x.shape[-1] != columns:
        raise ShapeError(f"linear: activations of shape {x.shape} do not match the weight of shape {matrix.shape}")
    vectors = math.prod(x.shape[:-1])
    epilogue = Epilogue(bias, activation, residual)
    shape = (*x.shape[:-1], rows)
    if vectors > MOST_VECTORS:
        product = MatrixProduct(x, matrix, vectors, rows, columns, False, True, np.zeros((1, 2), np.uint32))
        return multiply(context, product, shape, epilogue, out, out_dtype, variant)
    epilogue.check(shape, "linear")
    result = output(context, out, out_dtype or x.dtype, shape, "linear")
    if result.size:
        _matvec(context, x, matrix, vectors, epilogue, result, variant)
    return result


def plain_weight(array: DeviceArray) -> DeviceWeight:
    """An array [outputs, inputs] as a weight."""
    if len(array.shape) != 2:
        raise ShapeError(f"a weight has shape {array.shape}; expected two axes, outputs and inputs")
    return DeviceWeight(array.dtype, (array.shape[0], array.shape[1]), array)


def linear_question(weight: DeviceWeight, vectors: int) -> str:
    """What the choice of a variant is remembered by."""
    return f"matvec {weight.coding} {shape_class(vectors, *weight.shape)}"


def _matvec(
    context: MetalContext,
    x: DeviceArray,
    weight: DeviceWeight,
    vectors: int,
    epilogue: Epilogue,
    out: DeviceArray,
    variant: str | None,
) -> None:
    rows, columns = weight.shape
    default = _default_variant(context.info.family, rows, columns)
    name = chosen(context, linear_question(weight, vectors), VECTOR_VARIANTS, default, variant)
    split, simdgroups = name.startswith("split"), int(name.removeprefix("split"))
    constants = {
        **weight.constants,
        **epilogue.constants(out),
        "x_type": float_number(x, "linear: x"),
        "split": split,
        "x_is_aligned": x.is_aligned(columns),
    }
    operands = (
        x,
        weight.values,
        weight.scales,
        weight.biases,
        epilogue.bias,
        epilogue.residual,
        out,
        uints(rows, columns),
    )
    work = Work(
        nbytes_of(x, weight, epilogue.bias, epilogue.residual, out),
        2 * vectors * rows * columns,
        f"{vectors}x{columns} {weight.coding} {rows}",
    )
    rows_per_group = _ROWS_PER_SIMDGROUP * (1 if split else simdgroups)
    grid = Grid((-(-rows // rows_per_group),), (simdgroups * SIMD_WIDTH,))
    defines = (("VECTORS", str(vectors)),)
    launch(context, "matvec", "matvec", constants, operands, grid, work, defines=defines)


def _default_variant(family: GpuFamily, rows: int, columns: int) -> str:
    """Few long rows are shared; GPUs from M3 on schedule larger threadgroups better."""
    if rows <= _SPLIT_BELOW_ROWS and columns >= _SPLIT_FROM_COLUMNS:
        return "split8"
    return "4" if family >= GpuFamily.APPLE9 else "2"
