"""IQ1_M: 256 values as 32 bytes of codes, 16 of high bits and shifts, 8 of scales: 56 bytes.

Half a byte has three high bits of a code and the sign of its group's shift. The scales are four times 16 bits: four
times three bits, each for two groups, and on top a quarter of the f16 that scales them all.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.kernels.codecs.codebook import DELTA, store_shifted, u16
from lbrx.devices.cpu.kernels.codecs.grid_blocks import clear, columns_of
from lbrx.devices.cpu.kernels.codecs.grid_search import store_numbers
from lbrx.devices.cpu.kernels.codecs.three_values import (
    DOWN,
    LOWEST,
    RADIX,
    UP,
    put_running_sums,
    put_split_levels,
    rank,
    shifted_scale,
    snap_three,
    weigh,
)
from lbrx.devices.cpu.simd.elements import load_byte, load_f16, store_byte, store_f16, store_i16, store_i32
from lbrx.devices.cpu.simd.f32 import nearest_even
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.memory import peek_f32, peek_i32, poke_f32, poke_i32, stack_bytes
from lbrx.devices.cpu.simd.vectors import clamp, f32x16, lane, lane_max, load, mask_bits, select, splat, store, to_i32

NO_SCALE = np.float32(1e-7)  # a sub-block whose values are all smaller has no scale
SUMS, SUMS_BYTES = 4096, 17 * 64  # of both halves: products, then weights
NUMBERS = SUMS + 4 * SUMS_BYTES
TILES_BYTES = NUMBERS + 2 * 64 + 128 + 64  # entries, scales, their levels, shifts
GROWTH = np.float32(1.1125)
TOP_UP, TOP_DOWN = UP[2], DOWN[2]
# Differences of the squares of neighbouring numbers.
STEPS_UP = (UP[0] * UP[0] - UP[1] * UP[1], UP[1] * UP[1] - UP[2] * UP[2])
STEPS_DOWN = (DOWN[0] * DOWN[0] - DOWN[1] * DOWN[1], DOWN[1] * DOWN[1] - DOWN[2] * DOWN[2])


@jit
def _half_sums(like: Any, sums: Any, low: Any, high: Any, top: Any, steps: Any) -> Any:
    """The two sums of a split for one half of a sub-block, whose numbers lie 1 apart and end at ``top``."""
    weights = sums + 2 * SUMS_BYTES
    product_sum = load(like, sums, 16) * top - (load(like, sums, low) + load(like, sums, high))
    square_sum = load(like, weights, 16) * top * top + load(like, weights, low) * steps[0]
    return product_sum, square_sum + load(like, weights, high) * steps[1]


@jit
def _best_split(like: Any, sums: Any) -> Any:
    """The scale and the two boundaries of the best split, and which of four pairs of shifts: up up, up down, ..."""
    best, scale = splat(like, LOWEST), splat(like, 0.0)
    none = to_i32(scale)
    best_low, best_high, best_pair = none, none, none
    for low in range(17):
        for high in range(low, 17):
            first_up = _half_sums(like, sums, low, high, TOP_UP, STEPS_UP)
            first_down = _half_sums(like, sums, low, high, TOP_DOWN, STEPS_DOWN)
            second_up = _half_sums(like, sums + SUMS_BYTES, low, high, TOP_UP, STEPS_UP)
            second_down = _half_sums(like, sums + SUMS_BYTES, low, high, TOP_DOWN, STEPS_DOWN)
            for pair in range(4):
                first = first_up if pair < 2 else first_down
                second = second_up if pair % 2 == 0 else second_down
                product_sum, square_sum = first[0] + second[0], first[1] + second[1]
                is_better = (square_sum > 0.0) & (product_sum * product_sum > best * square_sum)
                if mask_bits(is_better):
                    scale = select(is_better, product_sum / square_sum, scale)
                    best = select(is_better, scale * product_sum, best)
                    best_low = select(is_better, splat(none, np.int32(low)), best_low)
                    best_high = select(is_better, splat(none, np.int32(high)), best_high)
                    best_pair = select(is_better, splat(none, np.int32(pair)), best_pair)
    return scale, best_low, best_high, best_pair, best > LOWEST


@jit
def _ups(pair: Any) -> Any:
    """Bits of the two groups: whether their shifts are up."""
    return (1 if pair < 2 else 0) | (2 if pair % 2 == 0 else 0)


@jit
def _best_unit(tiles: Any, levels: Any, pairs: Any, unit: Any) -> Any:
    """The unit that fits the coded block best."""
    product_sum, square_sum = np.float32(0.0), np.float32(0.0)
    for number in range(16):
        factor = np.float32(2 * peek_i32(levels, number) + 1)
        is_up = _ups(peek_i32(pairs, number))
        for i in range(16):
            at = 16 * i + number
            shift = DELTA if (is_up >> (i // 8)) & 1 else -DELTA
            weight = peek_f32(tiles + 1024, at)
            code = (peek_f32(tiles + 3072, at) - np.float32(1.0) + shift) * factor
            product_sum += weight * code * peek_f32(tiles, at)
            square_sum += weight * code * code
    return product_sum / square_sum if square_sum > 0 else unit


@jit
def _write(tiles: Any, target: Any, levels: Any, pairs: Any, unit: Any) -> None:
    for number in range(16):
        first = np.int64(peek_i32(tiles + NUMBERS, number))
        second = np.int64(peek_i32(tiles + NUMBERS, 16 + number))
        store_byte(target, 2 * number, np.uint8(first & 255))
        store_byte(target, 2 * number + 1, np.uint8(second & 255))
        is_up = _ups(peek_i32(pairs, number))
        signs = (0 if is_up & 1 else 8) | (0 if is_up & 2 else 128)
        store_byte(target + 32, number, np.uint8((first >> 8) | ((second >> 8) << 4) | signs))
    store_f16(target + 48, 0, unit * GROWTH)
    bits = u16(target + 48, 0)
    for quad in range(4):
        packed = ((bits >> (4 * quad)) & 15) << 12
        for k in range(4):
            packed |= np.int64(peek_i32(levels, 4 * quad + k)) << (3 * k)
        store_i16(target + 48, quad, np.int16(packed))


@jit
def _encode(source: Any, target: Any, blocks: Any, blocks_per_row: Any, importance: Any, table: Any) -> None:
    tiles = stack_bytes(TILES_BYTES)
    levels, pairs = tiles + NUMBERS + 192, tiles + NUMBERS + 256
    like = f32x16(0.0)
    for block in range(blocks):
        out = target + 56 * block
        columns = columns_of(importance, block, blocks_per_row)
        is_used = weigh(like, source + 1024 * block, columns, tiles, 16, 16) >= NO_SCALE
        rank(like, tiles, 16)
        put_running_sums(tiles, tiles + SUMS, 16, 16, 0, 8, 2 * SUMS_BYTES)
        put_running_sums(tiles, tiles + SUMS + SUMS_BYTES, 16, 16, 8, 16, 2 * SUMS_BYTES)
        scale, low, high, pair, is_found = _best_split(like, tiles + SUMS)
        is_used = is_used & is_found
        is_mirrored = scale < 0.0
        put_split_levels(like, tiles, 16, low, high, is_mirrored)
        scale = select(is_mirrored, splat(like, 0.0) - scale, scale)
        pair = select(is_mirrored, splat(pair, np.int32(3)) - pair, pair)
        pair = select(is_used, pair, pair - pair)
        store(pairs, 0, pair)
        store_numbers(like, tiles + 3072, tiles + NUMBERS, 16, 8, RADIX)
        used = mask_bits(is_used)
        for number in range(16):
            own_scale = lane(scale, number)
            is_up = _ups(peek_i32(pairs, number))
            if not (used >> number) & 1:
                own_scale = np.float32(0.0)
                _set_first_entry(tiles, number, table)
            elif snap_three(like, tiles, tiles + NUMBERS, 16, 16, own_scale, is_up, table, number):
                own_scale = shifted_scale(tiles, 16, 16, is_up, number, own_scale)
            poke_f32(tiles + NUMBERS + 128, number, own_scale)
        scale = load(like, tiles + NUMBERS + 128, 0)
        unit = max(lane_max(scale), np.float32(0.0)) / np.float32(15.0)
        if unit > 0:
            coded = nearest_even((scale * (np.float32(1.0) / unit) - np.float32(1.0)) * np.float32(0.5))
            store(levels, 0, to_i32(clamp(coded, 0.0, np.float32(7.0))))
            _write(tiles, out, levels, pairs, _best_unit(tiles, levels, pairs, unit))
        else:
            clear(out, 56)


@jit
def _set_first_entry(tiles: Any, number: Any, table: Any) -> None:
    """Both groups of an unused sub-block are entry 0, whose levels are all 0."""
    for part in range(2):
        poke_i32(tiles + NUMBERS, 16 * part + number, np.int32(0))
    for i in range(16):
        poke_f32(tiles + 3072, 16 * i + number, np.float32(0.0))


def encode(source: int, target: int, blocks: int, table: int) -> None:
    _encode(source, target, blocks, blocks, 0, table)


def encode_weighted(source: int, target: int, rows: int, blocks_per_row: int, importance: int, table: int) -> None:
    _encode(source, target, rows * blocks_per_row, blocks_per_row, importance, table)


def decode(source: int, target: int, blocks: int, codebook: int) -> None:
    work = stack_bytes(8)
    for block in range(blocks):
        stored = source + 56 * block
        scales = stored + 48
        half_bits = 0
        for number in range(4):
            half_bits |= (u16(scales, number) >> 12) << (4 * number)
        store_i32(work, 0, np.int32(half_bits))
        unit = load_f16(work, 0)
        for group in range(32):
            scale = unit * np.float32(2 * ((u16(scales, group // 8) >> (3 * (group // 2 % 4))) & 7) + 1)
            extra = (np.int64(load_byte(stored + 32, group // 2)) >> (4 * (group % 2))) & 15
            code = np.int64(load_byte(stored, group)) | ((extra & 7) << 8)
            delta = -DELTA if extra & 8 else DELTA
            store_shifted(target, 32 * block + group, codebook + 8 * code, delta, scale)
