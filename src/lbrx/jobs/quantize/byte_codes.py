"""Codes of 8 bits with scales for blocks, and floats of 4 bits in bytes, as libraries for transformers store them."""

from __future__ import annotations

import math

from lbrx.base.fast_dataclass import dataclass
from lbrx.jobs.quantize.packed_codes import SCALES_OF_ZEROS, in_type, scales_in_type
from lbrx.tensors.creation import concatenate, where
from lbrx.tensors.tensor import Tensor, tensor

LARGEST = {"f8_e4m3": 448.0, "f8_e5m2": 57344.0, "i8": 127.0}
LARGEST_E2M1, LARGEST_E4M3 = 6.0, 448.0
NVFP4_GROUP, MXFP4_GROUP = 16, 32
_I8 = (-128.0, 127.0)
_TIES_DOWN, _TIES_UP = (0.25, 1.25, 2.5, 5.0), (0.75, 1.75, 3.5)  # between the eight magnitudes of E2M1
_ZERO_SCALE_E4M3 = 0.125
_ALMOST = 1e-10  # more than the error of a logarithm in f64, and less than the distance of logarithms of f32


@dataclass(frozen=True, slots=True)
class BlockArithmetic:
    """Quotients are rounded to ``computes_in`` first. The largest magnitude of a block becomes ``largest``, by default
    the largest code; ``if_zero`` is the scale of zeros."""

    computes_in: str = "f32"
    largest: float | None = None
    if_zero: float = 1.0


def library_arithmetic(type_name: str, scale_type: str) -> BlockArithmetic:
    """Return the arithmetic of compressed-tensors."""
    return BlockArithmetic(scale_type, 127.5 if type_name == "i8" else None, SCALES_OF_ZEROS[scale_type])


def in_blocks(
    values: Tensor, block: tuple[int, int], type_name: str, scale_type: str, own: BlockArithmetic
) -> tuple[Tensor, Tensor]:
    """Return codes and scales; blocks at the ends of rows and columns may be smaller."""
    for axis, size in zip((-2, -1), block, strict=True):
        whole = values.shape[axis] // size * size
        if 0 < whole < values.shape[axis]:
            spans = (slice(0, whole), slice(whole, None))
            pieces = [values[..., span, :] if axis == -2 else values[..., span] for span in spans]
            coded = [in_blocks(piece, block, type_name, scale_type, own) for piece in pieces]
            return concatenate([each[0] for each in coded], axis), concatenate([each[1] for each in coded], axis)
    *front, rows, columns = values.shape
    height, width = min(block[0], rows), min(block[1], columns)
    grid = (*front, rows // height, columns // width)
    tiles = values.reshape(*front, grid[-2], height, grid[-1], width)
    limits = abs(tiles).max(axis=-1).max(axis=-2)
    scales = scales_in_type(limits / (own.largest or LARGEST[type_name]), scale_type, own.if_zero)
    codes = in_type(tiles / scales.to("f32").reshape(*front, grid[-2], 1, grid[-1], 1), own.computes_in)
    return to_codes(codes.reshape(values.shape), type_name), scales


def to_codes(quotients: Tensor, type_name: str) -> Tensor:
    """Round quotients to codes.

    >>> to_codes(tensor([127.6, -0.5, 1.5], "f32"), "i8").numpy().tolist()
    [127, 0, 2]
    """
    return quotients.round().clip(*_I8).to("i8") if type_name == "i8" else quotients.to(type_name)


def nvfp4(values: Tensor, largest: Tensor, computes_in: str = "f32") -> tuple[Tensor, Tensor, Tensor]:
    """Return codes in bytes, scales of groups, and the number that scales are divided by, as compressed-tensors has
    them. ``largest`` is the largest magnitude of this weight and of those that share the number."""
    inverse = in_type(1.0 / where(largest == 0, 1.0, largest), computes_in)
    number = in_type(inverse * (LARGEST_E4M3 * LARGEST_E2M1), computes_in)
    tiles = values.reshape(values.shape[0], -1, NVFP4_GROUP)
    local = in_type(abs(tiles).max(axis=-1) / LARGEST_E2M1, computes_in)
    scales = (number * local).clip(0.0, LARGEST_E4M3)
    stored = scales_in_type(scales, "f8_e4m3", _ZERO_SCALE_E4M3)
    steps = (stored.to("f32") / number).reshape(*stored.shape, 1)
    return e2m1_pairs((tiles / steps).reshape(values.shape)), stored, number


def mxfp4(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return codes in bytes, and exponents of groups: a group whose largest magnitude is less than 7 steps of a scale
    gets this scale."""
    tiles = values.reshape(values.shape[0], -1, MXFP4_GROUP)
    limits = abs(tiles).max(axis=-1)
    powers = (where(limits == 0, 1.0, limits).to("f64") / 1.75).log() / math.log(2.0)
    exponents = where(limits == 0, 0.0, ((powers + _ALMOST).floor() + (127 + 1 - 2)).clip(0.0, 254.0))
    scales = ((exponents - 127.0) * math.log(2.0)).exp().to("f32")
    codes = e2m1_pairs((tiles / scales.reshape(*scales.shape, 1)).reshape(values.shape))
    return codes, exponents.to("u8")


def e2m1_pairs(quotients: Tensor) -> Tensor:
    """Round to floats of 4 bits, two in a byte, the first in the low half. Ties go to the even code.

    >>> [hex(pair) for pair in e2m1_pairs(tensor([[0.25, 0.75, -5.0, 9.0]], "f32")).numpy()[0]]
    ['0x20', '0x7e']
    """
    size = abs(quotients)
    codes = where(quotients < 0, 8.0, 0.0)
    for limit in _TIES_DOWN:
        codes = codes + where(size > limit, 1.0, 0.0)
    for limit in _TIES_UP:
        codes = codes + where(size >= limit, 1.0, 0.0)
    rows, columns = quotients.shape
    pairs = codes.reshape(rows, columns // 2, 2) * tensor([1.0, 16.0], "f32")
    return pairs.sum(axis=-1).to("u8")
