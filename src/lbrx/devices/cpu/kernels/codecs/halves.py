"""What the types with blocks of 32 share: half a block is a vector, because byte j holds elements j and j + 16."""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.simd.elements import load_f32, load_i32, store_i16
from lbrx.devices.cpu.simd.f32 import absolute
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.scalars import first_set_bit
from lbrx.devices.cpu.simd.vectors import (
    clamp,
    f32x16,
    lane_max,
    lane_min,
    load,
    load_u8,
    mask_bits,
    maximum,
    minimum,
    store_u8,
    to_i32,
    unpack_bits,
)


@jit
def load_half(block: Any, half: Any) -> Any:
    """Elements 0-15 or 16-31 of a block of f32."""
    return load(f32x16(0.0), block, half)


@jit
def largest_magnitude(block: Any) -> Any:
    """The largest absolute value of a block."""
    return lane_max(maximum(absolute(load_half(block, 0)), absolute(load_half(block, 1))))


@jit
def extreme_value(block: Any) -> Any:
    """The element with the largest absolute value, with its sign: the first of several, and 0 if all are zeros."""
    first, second = absolute(load_half(block, 0)), absolute(load_half(block, 1))
    largest = lane_max(maximum(first, second))
    lanes = mask_bits(first >= largest) | (mask_bits(second >= largest) << 16)
    return load_f32(block, first_set_bit(lanes) & 31) if largest > 0 else np.float32(0.0)


@jit
def lowest_and_highest(block: Any) -> Any:
    """The least and the greatest element, of zeros of both signs the first."""
    first, second = load_half(block, 0), load_half(block, 1)
    low, high = lane_min(minimum(first, second)), lane_max(maximum(first, second))
    low_lanes = mask_bits(first <= low) | (mask_bits(second <= low) << 16)
    high_lanes = mask_bits(first >= high) | (mask_bits(second >= high) << 16)
    return load_f32(block, first_set_bit(low_lanes) & 31), load_f32(block, first_set_bit(high_lanes) & 31)


@jit
def inverse(scale: Any) -> Any:
    """1 / scale, and 0 for a scale of 0."""
    return np.float32(0.0) if scale == 0 else np.float32(1.0) / scale


@jit
def codes(values: Any, top: Any) -> Any:
    """Non-negative values truncated to codes of 0 to ``top``."""
    return to_i32(clamp(values, 0.0, top))


@jit
def store_nibbles(target: Any, first: Any, second: Any) -> None:
    """16 bytes: the low four bits of the first half below those of the second."""
    store_u8(target, (first & 15) | ((second & 15) << 4))


@jit
def low_nibbles(source: Any) -> Any:
    return load_u8(f32x16(0.0), source) & 15


@jit
def high_nibbles(source: Any) -> Any:
    return load_u8(f32x16(0.0), source) >> 4


@jit
def store_fifth_bits(target: Any, first: Any, second: Any) -> None:
    """Four bytes: bit j is bit 4 of code j."""
    store_i16(target, 0, np.int16(mask_bits((first & 16) != 0)))
    store_i16(target, 1, np.int16(mask_bits((second & 16) != 0)))


@jit
def fifth_bits(source: Any) -> Any:
    """What `store_fifth_bits` wrote, as 0 or 16 for every code of the first and of the second half."""
    bits = np.int64(load_i32(source, 0))
    return unpack_bits(f32x16(0.0), bits) << 4, unpack_bits(f32x16(0.0), bits >> 16) << 4
