"""Integers packed into words of 32 bits, as GPTQ, AWQ and compressed-tensors store them, in groups of columns."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lbrx.base.fast_dataclass import dataclass
from lbrx.tensors.creation import where
from lbrx.tensors.tensor import Tensor, tensor

WORD_BITS = 32
EVEN_FIRST = (0, 4, 1, 5, 2, 6, 3, 7)  # the position in a word of each of eight codes, in AWQ
_TWO_TO_31, _TWO_TO_32 = 2.0**31, 2.0**32
SCALES_OF_ZEROS = {"f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}
"""What compressed-tensors writes instead of a scale of 0, by the type of scales."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The scale and the zero point of each group: a value is (code - zero point) x scale, with codes from 0 on."""

    scales: Tensor
    zero_points: Tensor  # f32


@dataclass(frozen=True, slots=True)
class Rounded:
    """Codes from 0 on as f32, and the scale and zero point of each group."""

    codes: Tensor
    scales: Tensor
    zero_points: Tensor


def plain_grid(values: Tensor, bits: int, group_size: int, scale_type: str, *, is_symmetric: bool) -> Grid:
    """Return the grid from the smallest to the largest value of each group."""
    largest = (1 << bits) - 1
    tiles = _groups(values, group_size)
    if is_symmetric:
        span = abs(tiles).max(axis=-1) * 2
    else:
        low, high = tiles.min(axis=-1), tiles.max(axis=-1)
        low, high = low.minimum(0), high.maximum(0)
        span = high - low
    scales = scales_in_type(span / largest, scale_type)
    half = 1 << (bits - 1)
    zero_points = span * 0 + half if is_symmetric else (-low / scales.to("f32")).round().clip(0, largest)
    return Grid(scales, zero_points)


def rounded(values: Tensor, bits: int, group_size: int, grid: Grid) -> Rounded:
    """Round the rows of a matrix to a grid."""
    rows, columns = values.shape
    steps = (_groups(values, group_size) / _for_columns(grid.scales.to("f32"))).round()
    codes = (steps + _for_columns(grid.zero_points)).clip(0, (1 << bits) - 1)
    return Rounded(codes.reshape(rows, columns), grid.scales, grid.zero_points)


def library_grid(values: Tensor, bits: int, group_size: int, scale_type: str, *, is_symmetric: bool) -> Grid:
    """Return the grid of compressed-tensors, which computes in the type of scales."""
    largest, half = (1 << bits) - 1, 1 << (bits - 1)
    tiles = _groups(values, group_size)
    if is_symmetric:
        span = abs(tiles).max(axis=-1)
        scales = scales_in_type(span / (largest / 2), scale_type, SCALES_OF_ZEROS[scale_type])
        return Grid(scales, span * 0 + half)
    low, high = tiles.min(axis=-1).minimum(0), tiles.max(axis=-1).maximum(0)
    span = in_type(high - low, scale_type)
    scales = scales_in_type(span / largest, scale_type, SCALES_OF_ZEROS[scale_type])
    zero_points = in_type(-half - in_type(low / scales.to("f32"), scale_type), scale_type).clip(-half, half - 1)
    return Grid(scales, where(span == 0, 0.0, zero_points).round() + half)


def library_rounded(values: Tensor, bits: int, group_size: int, grid: Grid) -> Rounded:
    """Round the rows of a matrix to a grid like compressed-tensors, which computes in the type of scales."""
    half, scale_type = 1 << (bits - 1), grid.scales.dtype.name
    steps = in_type(_groups(values, group_size) / _for_columns(grid.scales.to("f32")), scale_type)
    codes = in_type(steps + _for_columns(grid.zero_points - half), scale_type).clip(-half, half - 1).round() + half
    return Rounded(codes.reshape(values.shape), grid.scales, grid.zero_points)


def _groups(values: Tensor, group_size: int) -> Tensor:
    rows, columns = values.shape
    return values.reshape(rows, columns // group_size, group_size)


def _for_columns(numbers: Tensor) -> Tensor:
    return numbers.reshape(*numbers.shape, 1)


def in_type(values: Tensor, type_name: str) -> Tensor:
    """Return values rounded to a type, as f32."""
    return values if type_name == "f32" else values.to(type_name).to("f32")


def scales_in_type(scales: Tensor, scale_type: str, if_zero: float = 1.0) -> Tensor:
    """Return scales in their type. Those that are 0 there become another number: the codes of such values are 0.

    >>> scales_in_type(tensor([0.5, 1e-9, 0.0], "f32"), "f16").numpy().tolist()
    [0.5, 1.0, 1.0]
    """
    numbers = scales.to(scale_type).to("f32")
    return where(numbers == 0, if_zero, numbers).to(scale_type)


def in_words(codes: Tensor, bits: int, axis: int, order: tuple[int, ...] = ()) -> Tensor:
    """Pack codes of 2, 4 or 8 bits along an axis of a matrix; ``order`` is the position of each in its word.

    >>> in_words(tensor([[1, 2, 3, 4]], "f32"), 8, axis=1).numpy().tolist()
    [[67305985]]
    """
    count = WORD_BITS // bits
    positions = order or tuple(range(count))
    factors = tensor(np.array([2.0 ** (bits * position) for position in positions]))
    rows, columns = codes.shape
    if axis == 0:
        tiles, factors = codes.to("f64").reshape(rows // count, count, columns), factors.reshape(1, count, 1)
    else:
        tiles = codes.to("f64").reshape(rows, columns // count, count)
    words = (tiles * factors).sum(axis=1 if axis == 0 else -1)  # exact: less than 2 to the power of 32
    return where(words >= _TWO_TO_31, words - _TWO_TO_32, words).to("i32")


def can_pack(shape: tuple[int, ...], bits: int, group_size: int) -> bool:
    """Whether the codes of a matrix, and numbers of its groups, fill whole words."""
    count = WORD_BITS // bits
    return (
        len(shape) == 2
        and WORD_BITS % bits == 0
        and not (shape[0] % count or shape[1] % count or shape[1] % group_size)
    )


def gptq(own: Rounded, bits: int, *, is_second: bool, has_index: bool) -> Mapping[str, Tensor]:
    """Return the parts of GPTQ by the ends of their names. The first version stores zero points less one."""
    stored_zeros = own.zero_points.T if is_second else own.zero_points.T - 1
    parts = {
        "qweight": in_words(own.codes.T, bits, axis=0),
        "qzeros": in_words(stored_zeros, bits, axis=1),
        "scales": own.scales.T,
    }
    return {**parts, "g_idx": _index(own)} if has_index else parts


def awq(own: Rounded) -> Mapping[str, Tensor]:
    """Return the parts of AWQ by the ends of their names."""
    return {
        "qweight": in_words(own.codes.T, 4, 1, EVEN_FIRST),
        "qzeros": in_words(own.zero_points.T, 4, 1, EVEN_FIRST),
        "scales": own.scales.T,
    }


def compressed(own: Rounded, bits: int, *, has_zero_points: bool, has_index: bool) -> Mapping[str, Tensor]:
    """Return the parts of pack-quantized weights by the ends of their names."""
    parts = {
        "packed": in_words(own.codes, bits, axis=1),
        "scale": own.scales,
        "shape": tensor(np.array(own.codes.shape, np.int64)),
    }
    if has_zero_points:
        parts["zero_point"] = in_words(own.zero_points, bits, axis=0)
    return {**parts, "g_idx": _index(own)} if has_index else parts


def _index(own: Rounded) -> Tensor:
    columns, groups = own.codes.shape[1], own.scales.shape[1]
    return tensor(np.arange(columns, dtype=np.int32) // (columns // groups))
