"""Quantized matrices as other libraries store them: packed codes, and numbers for groups of elements.

Both give f32 values of the shape of the matrix, decoded as they are read, so that a weight is an expression such as
``(codes - zero_points) * scales``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import ShapeError
from lbrx.tensors.codecs.codec import Codec, Window
from lbrx.tensors.coded import Decode
from lbrx.tensors.expr import Expr
from lbrx.tensors.shape import Layout, Shape

_NUMBER_TYPES = {"f32": 0, "f16": 1, "bf16": 2, "f8_e4m3": 3, "u8": 4, "i8": 5, "f8_e8m0": 6}
_ORDERS = {"": 0, "high first": 1, "even first": 2}


@dataclass(frozen=True, slots=True)
class Table:
    """The value of each code."""

    values: tuple[float, ...]

    def __call__(self) -> npt.NDArray[np.float32]:
        return np.array(self.values, np.float32)


def integers(bits: int, offset: int = 0) -> Table:
    """Return the table of codes that are integers above an offset.

    >>> integers(2, offset=-2).values
    (-2.0, -1.0, 0.0, 1.0)
    """
    return Table(tuple(float(code + offset) for code in range(1 << bits)))


_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1 = Table((*_MAGNITUDES, *(-value for value in _MAGNITUDES)))
"""Floats of 4 bits."""
_SUBNORMALS = tuple(number / 8 for number in range(8))
_POSITIVE = (*_SUBNORMALS, *((1 + fraction) * 2.0**power for power in range(3) for fraction in _SUBNORMALS))
E2M3 = Table((*_POSITIVE, *(-value for value in _POSITIVE)))
"""Floats of 6 bits with 3 bits of mantissa."""


@dataclass(frozen=True, slots=True)
class Packing:
    """How codes are packed: along the rows of a matrix, or across them.

    Codes of a line (a row, or a column if ``is_across``) are a stream of bits, lowest first, in words of 4 bytes that
    are ``word_step`` bytes apart; lines are ``line_step`` bytes apart. ``order`` is "high first" for bytes whose first
    code is in the high half, or "even first" for words with the codes 0, 2, 4, 6, 1, 3, 5, 7.
    """

    bits: int
    line_step: int
    word_step: int = 4
    is_across: bool = False
    order: str = ""


def unpacked(codes: Expr, shape: Shape, packing: Packing, table: Table) -> Expr:
    """Return the values of the codes of a matrix, or of a stack of them that are stored one after the other."""
    *_, rows, columns = shape
    matrices = math.prod(shape[:-2])
    matrix_bytes = _nbytes(codes) // max(matrices, 1)
    is_contiguous = not packing.is_across and packing.word_step == 4
    window = Window(1, packing.line_step) if is_contiguous else Window(rows, matrix_bytes)
    lines, length = (columns, rows) if packing.is_across else (rows, columns)
    last = (length * packing.bits - 1) // 8
    needed = (lines - 1) * packing.line_step + last // 4 * packing.word_step + last % 4 + 1
    _check(0 not in shape and needed <= matrix_bytes, codes, shape)
    steps = matrix_bytes, packing.line_step, packing.word_step
    function = "across_rows" if packing.is_across else "along_rows"
    parameters = rows, columns, packing.bits, _ORDERS[packing.order], *steps
    return _decode((codes,), shape, "packed_codes", function, parameters, (window,), table)


def unpacked_lanes(codes: Expr, shape: Shape, bits: int, table: Table) -> Expr:
    """Return the values of codes whose bytes have rows i, i + n, i + 2n and so on, for n rows of bytes."""
    rows, columns = shape
    _check(0 not in shape and rows * columns * bits == 8 * _nbytes(codes), codes, shape)
    window = Window(rows, _nbytes(codes))
    return _decode((codes,), shape, "packed_codes", "rows_in_lanes", (rows, columns, bits), (window,), table)


def spread(
    numbers: Expr, shape: Shape, *, block: tuple[int, int], is_across: bool = False, number_type: str | None = None
) -> Expr:
    """Repeat the numbers of a matrix for blocks of elements. The last blocks may be smaller.

    With ``is_across``, the matrix of numbers is stored transposed. ``number_type`` is its dtype, or ``"f8_e8m0"`` for
    bytes that are exponents.
    """
    *_, rows, columns = shape
    first, second = numbers.shape[-2:]
    steps = (1, second) if is_across else (second, 1)
    grid = (second, first) if is_across else (first, second)
    covered = grid[0] * block[0] >= rows and grid[1] * block[1] >= columns
    _check(0 not in shape and covered and numbers.shape[:-2] == shape[:-2], numbers, shape)
    window = Window(rows, first * second * numbers.dtype.itemsize)
    parameters = _NUMBER_TYPES[number_type or numbers.dtype.name], rows, columns, *block, first * second, *steps
    return _decode((numbers,), shape, "spread_numbers", "blocks", parameters, (window,))


def looked_up(numbers: Expr, groups: Expr, shape: Shape, *, is_across: bool = False) -> Expr:
    """Repeat the numbers of groups of columns: ``numbers[row, groups[column]]``, of a transposed matrix if across.

    The groups must exist: they are not checked.
    """
    rows, columns = shape
    _check(0 not in shape and numbers.shape[int(is_across)] == rows and groups.shape == (columns,), numbers, shape)
    steps = (1, numbers.shape[1]) if is_across else (numbers.shape[1], 1)
    windows = Window(rows, _nbytes(numbers)), Window(rows, _nbytes(groups))
    parameters = _NUMBER_TYPES[numbers.dtype.name], columns, *steps
    return _decode((numbers, groups), shape, "spread_numbers", "looked_up", parameters, windows)


def _check(fits: bool, part: Expr, shape: Shape) -> None:
    if not fits:
        raise ShapeError(f"a part of shape {part.shape} does not hold what a matrix of shape {shape} is decoded from")


def _nbytes(stored: Expr) -> int:
    return math.prod(stored.shape) * stored.dtype.itemsize


def _decode(
    parts: tuple[Expr, ...],
    shape: Shape,
    kernels: str,
    decoder: str,
    parameters: tuple[int, ...],
    windows: tuple[Window, ...],
    table: Any = None,
) -> Expr:
    coding = Codec(
        decoder,
        block_elements=shape[-1],
        block_bytes=0,
        kernels=kernels,
        can_encode=False,
        codebook=table,
        decoder=decoder,
        decoder_parameters=parameters,
        windows=windows,
        rows=math.prod(shape[:-1]),
    )
    return Decode(parts, coding, Layout.contiguous(shape))
