"""IQ1_S: 256 values as an f16 scale, 32 bytes of codes, 8 times 16 bits: 50 bytes.

The 16 bits of a sub-block of 32 are three high bits for each of its four codes, three of a scale, and the sign of the
shift of all values. A code names a group of eight.
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
from lbrx.devices.cpu.simd.elements import load_byte, load_f16, store_byte, store_f16, store_i16
from lbrx.devices.cpu.simd.f32 import nearest_even
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.memory import peek_i32, poke_f32, stack_bytes
from lbrx.devices.cpu.simd.vectors import (
    clamp,
    f32x8,
    lane,
    lane_max,
    load,
    mask_bits,
    select,
    splat,
    store,
    to_i32,
)

NO_SCALE = np.float32(1e-12)  # a sub-block whose values are all smaller has no scale
SUMS, SUMS_BYTES = 4096, 33 * 32
NUMBERS = SUMS + 2 * SUMS_BYTES
TILES_BYTES = NUMBERS + 4 * 32 + 64  # entries, scales, their levels
GROWTH = np.float32(1.125)


@jit
def _scored(like: Any, sums: Any, low: Any, high: Any, values: Any) -> Any:
    """Sums of weight value number, and of weight number squared, for a split and three numbers."""
    weights = sums + SUMS_BYTES
    first, second, last = load(like, sums, low), load(like, sums, high), load(like, sums, 32)
    product_sum = (first - load(like, sums, 0)) * values[0] + (second - first) * values[1] + (last - second) * values[2]
    first, second, last = load(like, weights, low), load(like, weights, high), load(like, weights, 32)
    square_sum = (
        (first - load(like, weights, 0)) * values[0] * values[0]
        + (second - first) * values[1] * values[1]
        + (last - second) * values[2] * values[2]
    )
    return product_sum, square_sum


@jit
def _best_split(like: Any, sums: Any) -> Any:
    """The scale and the two boundaries of the best split, and whether its shift is up."""
    best, scale = splat(like, LOWEST), splat(like, 0.0)
    none = to_i32(scale)
    best_low, best_high, is_up = none, none, none
    for low in range(33):
        for high in range(low, 33):
            for turn in range(2):
                product_sum, square_sum = _scored(like, sums, low, high, UP if turn == 0 else DOWN)
                is_better = (square_sum > 0.0) & (product_sum * product_sum > best * square_sum)
                if mask_bits(is_better):
                    scale = select(is_better, product_sum / square_sum, scale)
                    best = select(is_better, scale * product_sum, best)
                    best_low = select(is_better, splat(none, np.int32(low)), best_low)
                    best_high = select(is_better, splat(none, np.int32(high)), best_high)
                    is_up = select(is_better, splat(none, np.int32(1 - turn)), is_up)
    return scale, best_low, best_high, is_up, best > LOWEST


@jit
def _write(tiles: Any, target: Any, is_up: Any, unit: Any) -> None:
    for number in range(8):
        bits = np.int64(peek_i32(tiles + NUMBERS + 160, number))
        if not (is_up >> number) & 1:
            bits |= 8
        bits <<= 12
        for part in range(4):
            entry = np.int64(peek_i32(tiles + NUMBERS, 8 * part + number))
            store_byte(target + 2, 4 * number + part, np.uint8(entry & 255))
            bits |= (entry >> 8) << (3 * part)
        store_i16(target + 34, number, np.int16(bits))
    store_f16(target, 0, unit * GROWTH)


def encode_weighted(source: int, target: int, rows: int, blocks_per_row: int, importance: int, table: int) -> None:
    tiles = stack_bytes(TILES_BYTES)
    like = f32x8(0.0)
    for block in range(rows * blocks_per_row):
        out = target + 50 * block
        columns = columns_of(importance, block, blocks_per_row)
        is_used = weigh(like, source + 1024 * block, columns, tiles, 32, 8) >= NO_SCALE
        rank(like, tiles, 32)
        put_running_sums(tiles, tiles + SUMS, 32, 8, 0, 32, SUMS_BYTES)
        scale, low, high, is_up, is_found = _best_split(like, tiles + SUMS)
        is_used = is_used & is_found
        is_mirrored = scale < 0.0
        put_split_levels(like, tiles, 32, low, high, is_mirrored)
        scale = select(is_mirrored, splat(like, 0.0) - scale, scale)
        ups = mask_bits(is_up > splat(is_up, np.int32(0))) ^ mask_bits(is_mirrored)
        used = mask_bits(is_used)
        ups |= ~used
        store_numbers(like, tiles + 3072, tiles + NUMBERS, 32, 8, RADIX)
        store(tiles + NUMBERS + 128, 0, scale)
        for number in range(8):
            own_scale = lane(scale, number)
            all_up = 15 if (ups >> number) & 1 else 0
            if not (used >> number) & 1:
                own_scale = np.float32(0.0)
                for part in range(4):
                    poke_f32(tiles + NUMBERS, 8 * part + number, np.float32(0.0))
            elif snap_three(like, tiles, tiles + NUMBERS, 32, 8, own_scale, all_up, table, number):
                own_scale = shifted_scale(tiles, 32, 8, all_up, number, own_scale)
            poke_f32(tiles + NUMBERS + 128, number, own_scale)
        scale = load(like, tiles + NUMBERS + 128, 0)
        unit = max(lane_max(scale), np.float32(0.0)) / np.float32(15.0)
        if unit > 0:
            levels = nearest_even((scale * (np.float32(1.0) / unit) - np.float32(1.0)) * np.float32(0.5))
            store(tiles + NUMBERS + 160, 0, to_i32(clamp(levels, 0.0, np.float32(7.0))))
            _write(tiles, out, ups, unit)
        else:
            clear(out, 50)


def decode(source: int, target: int, blocks: int, codebook: int) -> None:
    for block in range(blocks):
        stored = source + 50 * block
        unit = load_f16(stored, 0)
        for number in range(8):
            bits = u16(stored + 34, number)
            scale = unit * np.float32(2 * ((bits >> 12) & 7) + 1)
            delta = -DELTA if bits & 0x8000 else DELTA
            for part in range(4):
                group = 4 * number + part
                code = np.int64(load_byte(stored + 2, group)) | (((bits >> (3 * part)) & 7) << 8)
                store_shifted(target, 32 * block + group, codebook + 8 * code, delta, scale)
