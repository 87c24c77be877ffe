"""Q6_K: 256 values as 16 sub-blocks of 16, in 210 bytes: 128 of low halves, 64 of high bits, 16 scales (i8), f16 d.

A value is d scale (code - 32). In either half of the block, byte l of 64 low halves holds elements l and l + 64, and
byte l of 32 high bits holds elements l, l + 32, l + 64 and l + 96.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.kernels.codecs.searches import ALL_ZERO, fit_symmetric_scale, symmetric_level
from lbrx.devices.cpu.simd.elements import load_f16, store_byte, store_f16
from lbrx.devices.cpu.simd.f32 import absolute, nearest_even, round_to_f16
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.lanes import spread, weigh_by_square
from lbrx.devices.cpu.simd.memory import peek_i32, stack_bytes
from lbrx.devices.cpu.simd.scalars import first_set_bit
from lbrx.devices.cpu.simd.vectors import (
    clamp,
    f32x16,
    lane,
    lane_max,
    load,
    load_i8,
    load_u8,
    mask_bits,
    select,
    splat,
    store,
    store_u8,
    to_f32,
    to_i32,
)

BOUND, SCALE_BOUND = np.float32(32.0), np.float32(128.0)


@jit
def _pack(levels: Any, target: Any) -> None:
    for half in range(2):
        for i in range(32):
            first, second = _code(levels, 128 * half + i), _code(levels, 128 * half + 32 + i)
            third, fourth = _code(levels, 128 * half + 64 + i), _code(levels, 128 * half + 96 + i)
            store_byte(target, 64 * half + i, np.uint8((first & 15) | ((third & 15) << 4)))
            store_byte(target, 64 * half + 32 + i, np.uint8((second & 15) | ((fourth & 15) << 4)))
            high_bits = (first >> 4) | ((second >> 4) << 2) | ((third >> 4) << 4) | ((fourth >> 4) << 6)
            store_byte(target, 128 + 32 * half + i, np.uint8(high_bits))


@jit
def _code(levels: Any, element: Any) -> Any:
    return peek_i32(levels, 16 * (element % 16) + element // 16)


@jit
def _code_block(like: Any, tiles: Any, target: Any) -> None:
    """Code the tile of values with the tile of weights behind it."""
    levels = tiles + 2048
    scales, factor = fit_symmetric_scale(like, tiles, tiles + 1024, 16, BOUND)
    magnitudes = absolute(scales)
    largest = lane_max(magnitudes)
    if not largest >= ALL_ZERO:
        for i in range(210):
            store_byte(target, i, np.uint8(0))
        return
    extreme = lane(scales, first_set_bit(mask_bits(magnitudes >= largest)))
    scale_factor = -SCALE_BOUND / extreme
    unit = np.float32(1.0) / scale_factor
    store_f16(target + 208, 0, unit)
    codes = clamp(nearest_even(scales * scale_factor), -SCALE_BOUND, SCALE_BOUND - np.float32(1.0))
    store_u8(target + 192, to_i32(codes))
    scale = codes * round_to_f16(splat(like, unit))
    for i in range(16):
        value = load(like, tiles, i)
        searched = select(factor == 0.0, splat(like, -BOUND), symmetric_level(value, factor, BOUND))
        final = clamp(nearest_even(value / scale), -BOUND, BOUND - np.float32(1.0))
        store(levels, i, to_i32(select(scale == 0.0, searched, final) + BOUND))
    _pack(levels, target)


def encode(source: int, target: int, blocks: int) -> None:
    tiles = stack_bytes(3072)
    like = f32x16(0.0)
    for block in range(blocks):
        spread(source + 1024 * block, tiles, 16, 16)
        weigh_by_square(like, tiles, tiles + 1024, 16)
        _code_block(like, tiles, target + 210 * block)


def encode_weighted(source: int, target: int, rows: int, blocks_per_row: int, importance: int) -> None:
    tiles = stack_bytes(3072)
    like = f32x16(0.0)
    for block in range(rows * blocks_per_row):
        spread(source + 1024 * block, tiles, 16, 16)
        spread(importance + 1024 * (block % blocks_per_row), tiles + 1024, 16, 16)
        _code_block(like, tiles, target + 210 * block)


def decode(source: int, target: int, blocks: int) -> None:
    like = f32x16(0.0)
    for block in range(blocks):
        stored, out = source + 210 * block, target + 1024 * block
        unit = load_f16(stored + 208, 0)
        scales = load_i8(like, stored + 192)
        for number in range(16):
            half, part = number // 8, number % 8
            low_halves = load_u8(like, stored + 64 * half + 16 * (part % 4)) >> (4 * (part // 4))
            high_bits = load_u8(like, stored + 128 + 32 * half + 16 * (part % 2)) >> (2 * (part // 2))
            level = ((low_halves & 15) | ((high_bits & 3) << 4)) - 32
            store(out, number, to_f32(level) * (unit * np.float32(lane(scales, number))))
