"""Q3_K: 256 values as 16 sub-blocks of 16, in 110 bytes: 32 of third bits, 64 of codes, 12 of 6-bit scales, f16 d.

A value is d (scale - 32) (code - 4). Bit b of byte l of the third bits belongs to element 32 b + l; the low two bits
lie as in Q2_K. Byte j of the scales holds the low halves of scales j and j + 8; bytes 8-11 hold their high bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.kernels.codecs.searches import fit_symmetric_scale, refine_symmetric_levels, symmetric_level
from lbrx.devices.cpu.kernels.codecs.super_blocks import pack_two_bits, spread_weighted
from lbrx.devices.cpu.simd.elements import load_byte, load_f16, store_byte, store_f16
from lbrx.devices.cpu.simd.f32 import nearest_even, round_to_f16
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.lanes import spread, sums
from lbrx.devices.cpu.simd.memory import peek_i32, stack_bytes
from lbrx.devices.cpu.simd.vectors import (
    clamp,
    f32x8,
    f32x16,
    lane,
    load,
    load_u8,
    select,
    splat,
    store,
    to_f32,
    to_i32,
)

BOUND, SCALE_BOUND = np.float32(4.0), np.float32(32.0)


@jit
def _pack_scales(work: Any, target: Any) -> None:
    for j in range(8):
        store_byte(target, j, np.uint8((peek_i32(work, j) & 15) | ((peek_i32(work, j + 8) & 15) << 4)))
    for j in range(4):
        byte = 0
        for k in range(4):
            byte |= (peek_i32(work, j + 4 * k) >> 4) << (2 * k)
        store_byte(target, j + 8, np.uint8(byte))


@jit
def _pack_third_bits(levels: Any, target: Any) -> None:
    for i in range(32):
        byte = 0
        for k in range(8):
            element = 32 * k + i
            byte |= (peek_i32(levels, 16 * (element % 16) + element // 16) >> 2) << k
        store_byte(target, i, np.uint8(byte))


@jit
def _finish(like: Any, tiles: Any, target: Any, scale_codes: Any, unit: Any) -> None:
    """Write the block; the third tile has the codes that the search found, in case a scale became 0."""
    levels, work = tiles + 2048, tiles + 3072
    store_f16(target + 108, 0, unit)
    store(work, 0, to_i32(scale_codes))
    _pack_scales(work, target + 96)
    scale = (scale_codes - SCALE_BOUND) * round_to_f16(splat(like, unit))
    for i in range(16):
        level = clamp(nearest_even(load(like, tiles, i) / scale), -BOUND, BOUND - np.float32(1.0))
        store(levels, i, to_i32(select(scale == 0.0, load(like, levels, i), level + BOUND)))
    _pack_third_bits(levels, target)
    pack_two_bits(levels, target + 32)


def encode(source: int, target: int, blocks: int) -> None:
    tiles = stack_bytes(3072 + 64)
    like = f32x16(0.0)
    zero = np.float32(0.0)
    for block in range(blocks):
        spread(source + 1024 * block, tiles, 16, 16)
        scales = refine_symmetric_levels(like, tiles, tiles + 2048, 16, BOUND)
        for i in range(16):
            store(tiles + 2048, i, load(like, tiles + 2048, i) + BOUND)
        store(tiles + 1024, 0, scales)
        largest = _extreme_lane(tiles + 1024)
        factor = -SCALE_BOUND / largest if largest != 0 else zero
        codes = clamp(nearest_even(scales * factor), -SCALE_BOUND, SCALE_BOUND - np.float32(1.0)) + SCALE_BOUND
        if largest == 0:
            codes = splat(like, zero)
        _finish(like, tiles, target + 110 * block, codes, np.float32(1.0) / factor if largest != 0 else zero)


@jit
def _extreme_lane(scales: Any) -> Any:
    """The scale with the largest magnitude: the first of several."""
    like = f32x16(0.0)
    magnitude, extreme = np.float32(0.0), np.float32(0.0)
    for number in range(16):
        value = lane(load(like, scales, 0), number)
        if abs(value) > magnitude:
            magnitude, extreme = abs(value), value
    return extreme


def encode_weighted(source: int, target: int, rows: int, blocks_per_row: int, importance: int) -> None:
    tiles = stack_bytes(3072 + 64)
    like = f32x16(0.0)
    for block in range(rows * blocks_per_row):
        column = 1024 * (block % blocks_per_row)
        spread_weighted(like, source + 1024 * block, importance + column, tiles, 16, 16, np.float32(2.0))
        scales, factor = fit_symmetric_scale(like, tiles, tiles + 1024, 16, BOUND)
        for i in range(16):
            level = symmetric_level(load(like, tiles, i), factor, BOUND) + BOUND
            store(tiles + 2048, i, select(factor == 0.0, splat(like, 0.0), level))
        codes, unit = _scales_by_weight(scales, sums(like, tiles + 1024, 16), tiles + 1024)
        _finish(like, tiles, target + 110 * block, codes, unit)


@jit
def _scales_by_weight(scales: Any, weights: Any, work: Any) -> Any:
    """Codes of the scales, 0 to 63, and their unit, found by the search that finds the levels of a sub-block.

    The 16 scales are one block to it, the same in every lane of a tile.
    """
    like = f32x8(0.0)
    for number in range(16):
        store(work, number, splat(like, lane(scales, number)))
        store(work + 512, number, splat(like, lane(weights, number)))
    unit, factor = fit_symmetric_scale(like, work, work + 512, 16, SCALE_BOUND)
    codes = symmetric_level(scales, splat(scales, lane(factor, 0)), SCALE_BOUND) + SCALE_BOUND
    if lane(factor, 0) == 0:
        codes = splat(scales, 0.0)
    return codes, lane(unit, 0)


def decode(source: int, target: int, blocks: int) -> None:
    for block in range(blocks):
        stored, out = source + 110 * block, target + 1024 * block
        unit = load_f16(stored + 108, 0)
        packed = stored + 96
        for number in range(16):
            half, part = number // 8, number % 8
            low_bits = load_byte(packed, number % 8) >> (4 * half)
            high_bits = load_byte(packed, 8 + number % 4) >> (2 * (number // 4))
            scale = np.float32(np.int64((low_bits & 15) | ((high_bits & 3) << 4)) - 32)
            codes = load_u8(f32x16(0.0), stored + 32 + 32 * half + 16 * (part % 2)) >> (2 * (part // 2))
            third_bits = load_u8(f32x16(0.0), stored + 16 * (part % 2)) >> (number // 2)
            level = (codes & 3) + ((third_bits & 1) << 2) - 4
            store(out, number, to_f32(level) * (unit * scale))
