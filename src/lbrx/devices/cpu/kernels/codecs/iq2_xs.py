"""IQ2_XS: 256 values as an f16 scale, 32 groups of eight in 16 bits each, 8 bytes of scales: 74 bytes.

A group has nine bits that name it and seven signs; half a byte of the scales serves two groups.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.kernels.codecs.codebook import even_signs, store_signed, u16
from lbrx.devices.cpu.kernels.codecs.grid_blocks import (
    TILES_BYTES,
    clear,
    code_scales,
    columns_of,
    set_zero,
    split_signs,
    store_entries,
    weigh,
)
from lbrx.devices.cpu.kernels.codecs.grid_search import fit_on_grid
from lbrx.devices.cpu.kernels.codecs.searches import ALL_ZERO
from lbrx.devices.cpu.simd.elements import load_byte, load_f16, store_byte, store_f16, store_i16
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.memory import peek_i32, stack_bytes
from lbrx.devices.cpu.simd.vectors import f32x16, select, splat

ROWS = 3**8  # of the table
TOP, WHOLE = np.float32(2.0), np.float32(5.0)
TRIES, STEP = 9, np.float32(0.1)


@jit
def _write(tiles: Any, target: Any) -> None:
    for number in range(16):
        for part in range(2):
            entry, signs = peek_i32(tiles + 5120, 16 * part + number), peek_i32(tiles + 6144, 16 * part + number) & 127
            store_i16(target + 2, 2 * number + part, np.int16(entry | (signs << 9)))
    for pair in range(8):
        first, second = peek_i32(tiles + 6656, 2 * pair), peek_i32(tiles + 6656, 2 * pair + 1)
        store_byte(target + 66, pair, np.uint8(first | (second << 4)))


def encode_weighted(source: int, target: int, rows: int, blocks_per_row: int, importance: int, table: int) -> None:
    tiles = stack_bytes(TILES_BYTES)
    like = f32x16(0.0)
    for block in range(rows * blocks_per_row):
        out = target + 74 * block
        columns = columns_of(importance, block, blocks_per_row)
        weigh(
            like,
            source + 1024 * block,
            columns,
            tiles,
            16,
            16,
            np.float32(1.0),
            np.float32(0.0),
        )
        largest = split_signs(like, tiles, 16, True)
        is_used = largest >= ALL_ZERO
        largest = select(is_used, largest, splat(like, 1.0))
        set_zero(like, tiles + 4096, 16)
        scale = fit_on_grid(
            like,
            tiles,
            16,
            16,
            8,
            TOP,
            largest,
            largest / WHOLE,
            is_used,
            TRIES,
            STEP,
            0,
            table,
            ROWS,
        )
        unit = code_scales(like, tiles, 16, scale, is_used)
        store_entries(like, tiles, 16, 16, 8, np.float32(3.0), table)
        if unit > 0:
            store_f16(out, 0, unit)
            _write(tiles, out)
        else:
            clear(out, 74)


def decode(source: int, target: int, blocks: int, codebook: int) -> None:
    for block in range(blocks):
        stored = source + 74 * block
        unit = load_f16(stored, 0)
        for group in range(32):
            code = u16(stored + 2, group)
            half = (load_byte(stored + 66, group // 4) >> (4 * (group // 2 % 2))) & 15
            scale = unit * (np.float32(0.5) + np.float32(half)) * np.float32(0.25)
            store_signed(target, 32 * block + group, codebook + 8 * (code & 511), even_signs(code >> 9), scale)
