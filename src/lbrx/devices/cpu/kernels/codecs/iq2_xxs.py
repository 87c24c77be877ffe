"""IQ2_XXS: 256 values as an f16 scale and 8 sub-blocks of 32 in 8 bytes each, together 66 bytes.

A sub-block has four bytes that name groups of eight values, and 32 bits: four times seven signs, and a scale on top.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.kernels.codecs.codebook import even_signs, store_signed, u32
from lbrx.devices.cpu.kernels.codecs.grid_blocks import (
    TILES_BYTES,
    clear,
    code_scales,
    columns_of,
    split_signs,
    store_entries,
    weigh,
)
from lbrx.devices.cpu.kernels.codecs.grid_search import fit_on_grid
from lbrx.devices.cpu.kernels.codecs.magnitudes import fit_magnitudes
from lbrx.devices.cpu.kernels.codecs.searches import ALL_ZERO
from lbrx.devices.cpu.simd.elements import load_byte, load_f16, store_byte, store_f16, store_i32
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.memory import peek_i32, stack_bytes
from lbrx.devices.cpu.simd.vectors import f32x8, select, splat

ROWS = 3**8  # of the table
TOP, FIRST_TOP, REACH = np.float32(2.0), np.float32(4.0), np.float32(3.0)
TRIES, STEP = 6, np.float32(0.1)


@jit
def _write(tiles: Any, target: Any) -> None:
    for number in range(8):
        bits = np.int64(peek_i32(tiles + 6656, number)) << 28
        for part in range(4):
            store_byte(target + 2 + 8 * number, part, np.uint8(peek_i32(tiles + 5120, 8 * part + number)))
            bits |= (np.int64(peek_i32(tiles + 6144, 8 * part + number)) & 127) << (7 * part)
        store_i32(target + 2 + 8 * number, 1, np.int32(bits))


def encode_weighted(source: int, target: int, rows: int, blocks_per_row: int, importance: int, table: int) -> None:
    tiles = stack_bytes(TILES_BYTES)
    like = f32x8(0.0)
    for block in range(rows * blocks_per_row):
        out = target + 66 * block
        columns = columns_of(importance, block, blocks_per_row)
        weigh(
            like,
            source + 1024 * block,
            columns,
            tiles,
            32,
            8,
            np.float32(1.0),
            np.float32(0.0),
        )
        largest = split_signs(like, tiles, 32, True)
        is_used = largest >= ALL_ZERO
        largest = select(is_used, largest, splat(like, 1.0))
        scale = fit_magnitudes(like, tiles, tiles + 1024, tiles + 4096, 32, FIRST_TOP, largest)
        reach = scale * REACH
        is_used = is_used & (reach > 0.0)
        reach = select(is_used, reach, splat(like, 1.0))
        scale = fit_on_grid(like, tiles, 32, 8, 8, TOP, reach, scale, is_used, TRIES, STEP, 2, table, ROWS)
        unit = code_scales(like, tiles, 32, scale, is_used)
        store_entries(like, tiles, 32, 8, 8, np.float32(3.0), table)
        if unit > 0:
            store_f16(out, 0, unit)
            _write(tiles, out)
        else:
            clear(out, 66)


def decode(source: int, target: int, blocks: int, codebook: int) -> None:
    for block in range(blocks):
        stored = source + 66 * block
        unit = load_f16(stored, 0)
        for number in range(8):
            codes = stored + 2 + 8 * number
            bits = u32(codes, 1)
            scale = unit * (np.float32(0.5) + np.float32(bits >> 28)) * np.float32(0.25)
            for group in range(4):
                entry = codebook + 8 * np.int64(load_byte(codes, group))
                signs = even_signs((bits >> (7 * group)) & 127)
                store_signed(target, 32 * block + 4 * number + group, entry, signs, scale)
