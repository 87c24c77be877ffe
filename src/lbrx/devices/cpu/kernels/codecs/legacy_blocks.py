"""What Q4_0, Q4_1, Q5_0 and Q5_1 share: blocks of 32 as an f16 scale, an f16 minimum if the type has one, 4 bytes of
fifth bits if codes have five, and 16 bytes of the low four bits of codes.

A value is (code - middle) scale, or code scale + minimum.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.kernels.codecs.halves import (
    codes,
    extreme_value,
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
    search_symmetric,
    search_with_min,
    spread_blocks,
    write_searched_fifth_bits,
    write_searched_nibbles,
)
from lbrx.devices.cpu.simd.elements import load_f16, store_f16
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.memory import peek_f32, stack_bytes
from lbrx.devices.cpu.simd.vectors import store, to_f32


def make_codec(bits: int, has_min: bool) -> Any:
    """The functions ``encode``, ``encode_weighted`` and ``decode`` of a type."""
    has_fifth_bits, middle = bits == 5, 1 << (bits - 1)
    fifth_at = 4 if has_min else 2
    nibbles_at = fifth_at + (4 if has_fifth_bits else 0)
    block_bytes = nibbles_at + 16
    top, bottom = np.float32((1 << bits) - 1), np.float32(-middle)
    rounding = 0.5 if has_min else middle + 0.5
    search, bound = (search_with_min, top) if has_min else (search_symmetric, -bottom)

    @jit
    def scale_and_low(values: Any) -> Any:
        if has_min:
            low, high = lowest_and_highest(values)
            return (high - low) / top, low
        return extreme_value(values) / bottom, np.float32(0.0)

    @jit
    def store_scale(target: Any, scale: Any, low: Any) -> None:
        store_f16(target, 0, scale)
        if has_min:
            store_f16(target, 1, low)

    @jit
    def write_searched(tiles: Any, lane: Any, target: Any) -> None:
        store_scale(target, peek_f32(tiles + SCALES_AT, lane), peek_f32(tiles + LOWS_AT, lane))
        if has_fifth_bits:
            write_searched_fifth_bits(tiles, lane, target + fifth_at)
        write_searched_nibbles(tiles, lane, target + nibbles_at)

    @jit
    def value(level: Any, scale: Any, low: Any) -> Any:
        if has_min:
            return to_f32(level) * scale + low
        return to_f32(level - middle) * scale

    def encode(source: int, target: int, blocks: int) -> None:
        for block in range(blocks):
            values, out = source + 128 * block, target + block_bytes * block
            scale, low = scale_and_low(values)
            factor = inverse(scale)
            store_scale(out, scale, low)
            first = codes((load_half(values, 0) - low) * factor + rounding, top)
            second = codes((load_half(values, 1) - low) * factor + rounding, top)
            if has_fifth_bits:
                store_fifth_bits(out + fifth_at, first, second)
            store_nibbles(out + nibbles_at, first, second)

    def encode_weighted(source: int, target: int, rows: int, blocks_per_row: int, importance: int) -> None:
        tiles = stack_bytes(TILES_BYTES)
        for row in range(rows):
            values, out = source + 128 * blocks_per_row * row, target + block_bytes * blocks_per_row * row
            mean_square = row_mean_square(values, blocks_per_row)
            for first in range(0, blocks_per_row, LANES):
                spread_blocks(values, importance, tiles, first, blocks_per_row, mean_square)
                search(tiles, bound)
                for lane in range(min(LANES, blocks_per_row - first)):
                    write_searched(tiles, lane, out + block_bytes * (first + lane))

    def decode(source: int, target: int, blocks: int) -> None:
        for block in range(blocks):
            stored, out = source + block_bytes * block, target + 128 * block
            scale, low = load_f16(stored, 0), load_f16(stored, 1)
            first, second = low_nibbles(stored + nibbles_at), high_nibbles(stored + nibbles_at)
            if has_fifth_bits:
                first_bits, second_bits = fifth_bits(stored + fifth_at)
                first, second = first | first_bits, second | second_bits
            store(out, 0, value(first, scale, low))
            store(out, 1, value(second, scale, low))

    return encode, encode_weighted, decode
