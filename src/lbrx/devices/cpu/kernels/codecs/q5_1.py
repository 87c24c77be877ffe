"""Q5_1: blocks of 32 as f16 scale and minimum, 4 bytes of fifth bits, 16 of low halves; x = code scale + minimum."""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.kernels.codecs.halves import (
    codes,
    fifth_bits,
    high_nibbles,
    inverse,
    load_half,
    low_nibbles,
    lowest_and_highest,
    store_fifth_bits,
    store_nibbles,
)
from lbrx.devices.cpu.kernels.codecs.legacy_search import (
    LANES,
    LOWS_AT,
    SCALES_AT,
    TILES_BYTES,
    row_mean_square,
    search_with_min,
    spread_blocks,
    write_searched_fifth_bits,
    write_searched_nibbles,
)
from lbrx.devices.cpu.simd.elements import load_f16, store_f16
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.memory import peek_f32, stack_bytes
from lbrx.devices.cpu.simd.vectors import store, to_f32


@jit
def _write(tiles: Any, lane: Any, target: Any) -> None:
    store_f16(target, 0, peek_f32(tiles + SCALES_AT, lane))
    store_f16(target, 1, peek_f32(tiles + LOWS_AT, lane))
    write_searched_fifth_bits(tiles, lane, target + 4)
    write_searched_nibbles(tiles, lane, target + 8)


def encode(source: int, target: int, blocks: int) -> None:
    for block in range(blocks):
        values, out = source + 128 * block, target + 24 * block
        low, high = lowest_and_highest(values)
        scale = (high - low) / np.float32(31.0)
        factor = inverse(scale)
        store_f16(out, 0, scale)
        store_f16(out, 1, low)
        first = codes((load_half(values, 0) - low) * factor + 0.5, 31.0)
        second = codes((load_half(values, 1) - low) * factor + 0.5, 31.0)
        store_fifth_bits(out + 4, first, second)
        store_nibbles(out + 8, first, second)


def encode_weighted(source: int, target: int, rows: int, blocks_per_row: int, importance: int) -> None:
    tiles = stack_bytes(TILES_BYTES)
    for row in range(rows):
        values, out = source + 128 * blocks_per_row * row, target + 24 * blocks_per_row * row
        mean_square = row_mean_square(values, blocks_per_row)
        for first in range(0, blocks_per_row, LANES):
            spread_blocks(values, importance, tiles, first, blocks_per_row, mean_square)
            search_with_min(tiles, np.float32(31.0))
            for lane in range(min(LANES, blocks_per_row - first)):
                _write(tiles, lane, out + 24 * (first + lane))


def decode(source: int, target: int, blocks: int) -> None:
    for block in range(blocks):
        stored, out = source + 24 * block, target + 128 * block
        scale, low = load_f16(stored, 0), load_f16(stored, 1)
        first, second = fifth_bits(stored + 4)
        store(out, 0, to_f32(low_nibbles(stored + 8) | first) * scale + low)
        store(out, 1, to_f32(high_nibbles(stored + 8) | second) * scale + low)
