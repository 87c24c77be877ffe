"""Integers packed into words of 32 bits, as GPTQ, AWQ and compressed-tensors store them: plain rounding of groups."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lbrx.base.fast_dataclass import dataclass
from lbrx.tensors.creation import where
from lbrx.tensors.tensor import Tensor, tensor

WORD_BITS = 32
EVEN_FIRST = (0, 4, 1, 5, 2, 6, 3, 7)  # the position in a word of each of eight codes, in AWQ
_TWO_TO_31, _TWO_TO_32 = 2.0**31, 2.0**32


@dataclass(frozen=True, slots=True)
class Rounded:
    """Codes from 0 on as f32, and the scale and zero point of each group: a value is (code - zero point) x scale."""

    codes: Tensor
    scales: Tensor
    zero_points: Tensor


def rounded(values: Tensor, bits: int, group_size: int, scale_type: str, *, is_symmetric: bool) -> Rounded:
    """Round the rows of a matrix in groups; scales are rounded to their type first."""
    rows, columns = values.shape
    groups, largest = columns // group_size, (1 << bits) - 1
    tiles = values.reshape(rows, groups, group_size)
    if is_symmetric:
        span = abs(tiles).max(axis=-1) * 2
    else:
        low, high = tiles.min(axis=-1), tiles.max(axis=-1)
        low, high = low.minimum(0), high.maximum(0)
        span = high - low
    scales = scales_in_type(span / largest, scale_type)
    wide = scales.to("f32")
    half = 1 << (bits - 1)
    zero_points = span * 0 + half if is_symmetric else (-low / wide).round().clip(0, largest)
    steps = (tiles / wide.reshape(rows, groups, 1)).round()
    codes = (steps + zero_points.reshape(rows, groups, 1)).clip(0, largest)
    return Rounded(codes.reshape(rows, columns), scales, zero_points)


def scales_in_type(scales: Tensor, scale_type: str) -> Tensor:
    """Return scales in their type. Those that are 0 there become 1: the codes of such values are 0.

    >>> scales_in_type(tensor([0.5, 1e-9, 0.0], "f32"), "f16").numpy().tolist()
    [0.5, 1.0, 1.0]
    """
    numbers = scales.to(scale_type).to("f32")
    return where(numbers == 0, 1.0, numbers).to(scale_type)


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


def gptq(
    values: Tensor, bits: int, group_size: int, scale_type: str, *, is_second: bool, has_index: bool
) -> Mapping[str, Tensor]:
    """Return the parts of GPTQ by the ends of their names; groups are symmetric, which all of its kernels compute."""
    own = rounded(values, bits, group_size, scale_type, is_symmetric=True)
    stored_zeros = own.zero_points.T if is_second else own.zero_points.T - 1
    parts = {
        "qweight": in_words(own.codes.T, bits, axis=0),
        "qzeros": in_words(stored_zeros, bits, axis=1),
        "scales": own.scales.T,
    }
    return {**parts, "g_idx": _index(values, group_size)} if has_index else parts


def awq(values: Tensor, group_size: int, scale_type: str) -> Mapping[str, Tensor]:
    """Return the parts of AWQ by the ends of their names."""
    own = rounded(values, 4, group_size, scale_type, is_symmetric=False)
    return {
        "qweight": in_words(own.codes.T, 4, 1, EVEN_FIRST),
        "qzeros": in_words(own.zero_points.T, 4, 1, EVEN_FIRST),
        "scales": own.scales.T,
    }


def compressed(
    values: Tensor, bits: int, group_size: int, scale_type: str, *, has_zero_points: bool, has_index: bool
) -> Mapping[str, Tensor]:
    """Return the parts of pack-quantized weights by the ends of their names."""
    own = rounded(values, bits, group_size, scale_type, is_symmetric=not has_zero_points)
    parts = {
        "packed": in_words(own.codes, bits, axis=1),
        "scale": own.scales,
        "shape": tensor(np.array(values.shape, np.int64)),
    }
    if has_zero_points:
        parts["zero_point"] = in_words(own.zero_points, bits, axis=0)
    return {**parts, "g_idx": _index(values, group_size)} if has_index else parts


def _index(values: Tensor, group_size: int) -> Tensor:
    return tensor(np.arange(values.shape[1], dtype=np.int32) // group_size)
