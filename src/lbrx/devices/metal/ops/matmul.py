"""Products of matrices: a times b, and activations times a weight in any coding.

A threadgroup makes a tile of the result from tiles of the operands in threadgroup memory, with 8 x 8 fragments that are
summed in f32. Tiles are f32 unless both operands are f16, or bf16 on GPUs with arithmetic for it, or a is f16 and the
weight is quantized: then codes become f16 numbers. A result is within (k + 8) 2**-23 of the sum of the magnitudes of
its products, and f16 tiles of quantized weights add 2**-11 of it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lbrx.base.fast_dataclass import dataclass
from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.context.profiler import Work
from lbrx.devices.metal.context.tuning import chosen, shape_class
from lbrx.devices.metal.driver import BufferBinding, DeviceInfo, GpuFamily
from lbrx.devices.metal.generations import BFLOAT_LANGUAGE, generation_of
from lbrx.devices.metal.ops.arrays import FLOAT_NUMBERS, DeviceArray, DeviceWeight, Shape
from lbrx.devices.metal.ops.epilogue import Epilogue
from lbrx.devices.metal.ops.launching import Grid, float_number, launch, nbytes_of, output, uints
from lbrx.errors import ShapeError
from lbrx.tensors.shape import broadcast_shapes

VARIANTS = ("32x32", "64x64")
TILE_TYPES = {"f32": "float", "f16": "half", "bf16": "bfloat"}
_NO_EPILOGUE = Epilogue()
_THREADS = 128
_MOST_MATRICES = 512  # pairs of numbers in 4096 bytes
_TILES_TO_FILL = {GpuFamily.APPLE7: 32, GpuFamily.APPLE8: 40, GpuFamily.APPLE9: 64, GpuFamily.APPLE10: 64}


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """What is multiplied: [rows, inner] times [inner, columns], for each pair of ``matrices``."""

    a: DeviceArray
    b: DeviceWeight
    rows: int
    columns: int
    inner: int
    transpose_a: bool
    transpose_b: bool
    matrices: NDArray[np.uint32]


def matmul(
    context: MetalContext,
    a: DeviceArray,
    b: DeviceArray,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    epilogue: Epilogue = _NO_EPILOGUE,
    out: DeviceArray | None = None,
    out_dtype: str | None = None,
    variant: str | None = None,
) -> DeviceArray:
    """a [..., n, k] times b [..., k, m]; transposed operands are [..., k, n] and [..., m, k].

    Leading axes broadcast. The result has the type of a, or ``out_dtype``.

    >>> from lbrx.devices.metal.ops.arrays import download, upload
    >>> context = MetalContext.open("emulated")
    >>> ones = upload(context, np.ones((2, 3), np.float32))
    >>> download(context, matmul(context, ones, ones, transpose_b=True))
    array([[3., 3.],
           [3., 3.]], dtype=float32)
    """
    if len(a.shape) < 2 or len(b.shape) < 2:
        raise ShapeError(f"matmul: shapes {a.shape} and {b.shape}; expected at least two axes each")
    float_number(a, "matmul: a")
    float_number(b, "matmul: b")
    inner, rows = a.shape[-2:] if transpose_a else a.shape[:-3:-1]
    columns, b_inner = b.shape[-2:] if transpose_b else b.shape[:-3:-1]
    if inner != b_inner:
        raise ShapeError(f"matmul: shapes {a.shape} and {b.shape} do not fit: {inner} and {b_inner} products")
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    matrices = np.stack([_numbers(a.shape[:-2], batch), _numbers(b.shape[:-2], batch)], axis=-1)
    b_matrix = DeviceWeight(b.dtype, (b.size // (inner or 1) if inner else 0, inner), b)
    product = MatrixProduct(a, b_matrix, rows, columns, inner, transpose_a, transpose_b, matrices)
    return multiply(context, product, (*batch, rows, columns), epilogue, out, out_dtype, variant)


def multiply(
    context: MetalContext,
    product: MatrixProduct,
    shape: Shape,
    epilogue: Epilogue,
    out: DeviceArray | None = None,
    out_dtype: str | None = None,
    variant: str | None = None,
) -> DeviceArray:
    """A checked product into an array of ``shape``."""
    epilogue.check(shape, "matmul")
    result = output(context, out, out_dtype or product.a.dtype, shape, "matmul")
    if not result.size:
        return result
    tile = _tile_type(context.info, product.a.dtype, product.b.coding)
    sizes = (product.rows, product.columns, product.inner)
    question = product_question(context, product.a.dtype, product.b.coding, sizes)
    name = chosen(context, question, VARIANTS, _default_variant(context.info.family, product), variant)
    edge = int(name.partition("x")[0])
    constants = {
        **product.b.constants,
        **epilogue.constants(result),
        "a_type": float_number(product.a, "matmul: a"),
        "transpose_a": product.transpose_a,
        "transpose_b": product.transpose_b,
        "a_is_aligned": product.a.is_aligned(product.rows if product.transpose_a else product.inner),
        "b_is_aligned": product.b.values.is_aligned(product.inner if product.transpose_b else product.columns),
    }
    tiles = (-(-product.columns // edge), -(-product.rows // edge))
    for first in range(0, len(product.matrices), _MOST_MATRICES):
        matrices = product.matrices[first : first + _MOST_MATRICES]
        operands = (
            product.a,
            product.b.values,
            product.b.scales,
            product.b.biases,
            epilogue.bias,
            _part(epilogue.residual, first, len(matrices), len(product.matrices)),
            _part(result, first, len(matrices), len(product.matrices)),
            uints(*sizes),
            np.ascontiguousarray(matrices).tobytes(),
        )
        work = Work(
            nbytes_of(product.a, product.b, epilogue.bias, epilogue.residual, result),
            2 * len(matrices) * product.rows * product.columns * product.inner,
            f"{len(matrices)}x{product.rows}x{product.inner} {product.b.coding} {product.columns}",
        )
        launch(
            context,
            "matmul",
            f"matmul_{name}",
            constants,
            operands,
            Grid((*tiles, len(matrices)), (_THREADS,)),
            work,
            defines=(("TILE", TILE_TYPES[tile]),),
        )
    return result


def product_question(context: MetalContext, a_dtype: str, coding: str, sizes: tuple[int, int, int]) -> str:
    """What the choice of a variant is remembered by; ``sizes`` are rows, columns and inner size."""
    return f"matmul {_tile_type(context.info, a_dtype, coding)} {coding} {shape_class(*sizes)}"


def _part(array: DeviceArray | None, first: int, count: int, matrices: int) -> BufferBinding | None:
    """The bytes of some matrices of a batch."""
    if array is None:
        return None
    matrix_bytes = array.nbytes // matrices
    return BufferBinding(array.buffer, array.offset + first * matrix_bytes, count * matrix_bytes)


def _numbers(own: Shape, batch: Shape) -> NDArray[np.uint32]:
    """Which matrix of an operand belongs to each matrix of the result."""
    numbers = np.arange(int(np.prod(own)), dtype=np.uint32).reshape(own)
    return np.broadcast_to(numbers, batch).reshape(-1)


def _tile_type(info: DeviceInfo, a: str, coding: str) -> str:
    if a == "f16" and (coding == "f16" or coding not in FLOAT_NUMBERS):
        return "f16"
    has_bf16 = generation_of(info.family).has_bf16_arithmetic and info.language >= BFLOAT_LANGUAGE
    return "bf16" if a == coding == "bf16" and has_bf16 else "f32"


def _default_variant(family: GpuFamily, product: MatrixProduct) -> str:
    """Large tiles where there are enough of them for all cores of the GPU, and no tile is mostly empty."""
    large = -(-product.rows // 64) * -(-product.columns // 64) * len(product.matrices)
    return "64x64" if min(product.rows, product.columns) > 32 and large >= _TILES_TO_FILL[family] else "32x32"
