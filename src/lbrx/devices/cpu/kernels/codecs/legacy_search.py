"""Codes of blocks of 32 by importance, eight blocks of a row at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.kernels.codecs.searches import fit_scale_and_min, fit_symmetric_scale, symmetric_level
from lbrx.devices.cpu.simd.elements import load_f32, store_byte
from lbrx.devices.cpu.simd.f32 import nearest_even
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.lanes import sum_of_squares, weigh_by_importance
from lbrx.devices.cpu.simd.memory import peek_i32, poke_f32
from lbrx.devices.cpu.simd.vectors import clamp, f32x8, load, select, splat, store, to_i32

LANES = 8
TILES_BYTES = 3 * 1024 + 64  # values, weights, codes, then two vectors of results
SCALES_AT, LOWS_AT = 3072, 3104
FIRST, STEP, TRIES = np.float32(-0.9), np.float32(0.05), 36


@jit
def spread_blocks(row: Any, importance: Any, tiles: Any, first: Any, blocks: Any, mean_square: Any) -> None:
    """Values and weights of blocks ``first`` and following as tiles; behind the last block of a row it repeats."""
    for number in range(LANES):
        start = 32 * min(first + number, blocks - 1)
        for i in range(32):
            poke_f32(tiles, LANES * i + number, load_f32(row, start + i))
            poke_f32(tiles + 1024, LANES * i + number, load_f32(importance, start + i))
    weigh_by_importance(f32x8(0.0), tiles, tiles + 1024, 32, mean_square)


@jit
def row_mean_square(row: Any, blocks: Any) -> Any:
    return sum_of_squares(row, 32 * blocks) / np.float32(32 * blocks)


@jit
def search_symmetric(tiles: Any, bound: Any) -> None:
    """Codes 0 to 2 bound - 1 in the third tile (as i32), and behind it the scales."""
    like = f32x8(0.0)
    scales, factor = fit_symmetric_scale(like, tiles, tiles + 1024, 32, bound)
    store(tiles + SCALES_AT, 0, scales)
    for i in range(32):
        level = symmetric_level(load(like, tiles, i), factor, bound) + bound
        store(tiles + 2048, i, to_i32(select(factor == 0.0, splat(like, 0.0), level)))


@jit
def search_with_min(tiles: Any, top: Any) -> None:
    """Codes 0 to ``top`` in the third tile (as i32), and behind it the scales and the minimums."""
    like = f32x8(0.0)
    scales, lows, factor, origin = fit_scale_and_min(
        like, tiles, tiles + 1024, tiles + 2048, 32, top, FIRST, STEP, TRIES, False
    )
    store(tiles + SCALES_AT, 0, scales)
    store(tiles + LOWS_AT, 0, lows)
    for i in range(32):
        level = clamp(nearest_even(factor * (load(like, tiles, i) - origin)), 0.0, top)
        store(tiles + 2048, i, to_i32(level))


@jit
def write_searched_nibbles(tiles: Any, lane: Any, target: Any) -> None:
    """The codes of one lane as 16 bytes."""
    for i in range(16):
        first = peek_i32(tiles + 2048, LANES * i + lane)
        second = peek_i32(tiles + 2048, LANES * (i + 16) + lane)
        store_byte(target, i, np.uint8((first & 15) | ((second & 15) << 4)))


@jit
def write_searched_fifth_bits(tiles: Any, lane: Any, target: Any) -> None:
    """The fifth bits of one lane as 4 bytes."""
    for byte in range(4):
        bits = 0
        for i in range(8):
            bits |= ((peek_i32(tiles + 2048, LANES * (8 * byte + i) + lane) >> 4) & 1) << i
        store_byte(target, byte, np.uint8(bits))
