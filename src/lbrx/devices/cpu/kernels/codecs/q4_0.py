"""Q4_0: blocks of 32 as an f16 scale and 32 codes of four bits, in 18 bytes; a value is (code - 8) scale."""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.kernels.codecs.halves import (
    codes,
    extreme_value,
    high_nibbles,
    inverse,
    load_half,
    low_nibbles,
    store_nibbles,
)
from lbrx.devices.cpu.kernels.codecs.legacy_search import (
    LANES,
    SCALES_AT,
    TILES_BYTES,
    row_mean_square,
    search_symmetric,
    spread_blocks,
    write_searched_nibbles,
)
from lbrx.devices.cpu.simd.elements import load_f16, store_f16
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.memory import peek_f32, stack_bytes
from lbrx.devices.cpu.simd.vectors import store, to_f32


@jit
def _write(tiles: Any, lane: Any, target: Any) -> None:
    store_f16(target, 0, peek_f32(tiles + SCALES_AT, lane))
    write_searched_nibbles(tiles, lane, target + 2)


def encode(source: int, target: int, blocks: int) -> None:
    for block in range(blocks):
        values, out = source + 128 * block, target + 18 * block
        scale = extreme_value(values) / np.float32(-8.0)
        factor = inverse(scale)
        store_f16(out, 0, scale)
        first = codes(load_half(values, 0) * factor + 8.5, 15.0)
        store_nibbles(out + 2, first, codes(load_half(values, 1) * factor + 8.5, 15.0))


def encode_weighted(source: int, target: int, rows: int, blocks_per_row: int, importance: int) -> None:
    tiles = stack_bytes(TILES_BYTES)
    for row in range(rows):
        values, out = source + 128 * blocks_per_row * row, target + 18 * blocks_per_row * row
        mean_square = row_mean_square(values, blocks_per_row)
        for first in range(0, blocks_per_row, LANES):
            spread_blocks(values, importance, tiles, first, blocks_per_row, mean_square)
            search_symmetric(tiles, np.float32(8.0))
            for lane in range(min(LANES, blocks_per_row - first)):
                _write(tiles, lane, out + 18 * (first + lane))


def decode(source: int, target: int, blocks: int) -> None:
    for block in range(blocks):
        stored, out = source + 18 * block, target + 128 * block
        scale = load_f16(stored, 0)
        store(out, 0, to_f32(low_nibbles(stored + 2) - 8) * scale)
        store(out, 1, to_f32(high_nibbles(stored + 2) - 8) * scale)
