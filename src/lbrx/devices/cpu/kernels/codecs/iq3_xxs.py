"""IQ3_XXS: 256 values as an f16 scale, 64 bytes that name groups of four, 8 times 32 bits of signs and scale: 98 bytes.

The 32 bits of a sub-block of 32 are four times seven signs, and a scale on top.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.kernels.codecs.codebook import even_signs, join_halves, store_signed, u32
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
from lbrx.devices.cpu.simd.elements import load_byte, load_f16, store_byte, store_f16, store_i32
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.memory import peek_i32, stack_bytes
from lbrx.devices.cpu.simd.vectors import f32x8, select, splat

ROWS = 8**4  # of the table
TOP, WHOLE = np.float32(7.0), np.float32(15.0)
TRIES, STEP = 15, np.float32(0.2)
NO_SCALE = np.float32(1e-8)  # a sub-block whose values are all smaller has no scale
GROWTH = np.float32(1.0125)


@jit
def _write(tiles: Any, target: Any) -> None:
    for number in range(8):
        for part in range(8):
            store_byte(target + 2, 8 * number + part, np.uint8(peek_i32(tiles + 5120, 8 * part + number)))
        bits = np.int64(peek_i32(tiles + 6656, number)) << 28
        for part in range(4):
            bits |= (np.int64(peek_i32(tiles + 6144, 8 * part + number)) & 127) << (7 * part)
        store_i32(target + 66, number, np.int32(bits))


@jit
def _encode(source: Any, target: Any, blocks: Any, blocks_per_row: Any, importance: Any, table: Any) -> None:
    tiles = stack_bytes(TILES_BYTES)
    like = f32x8(0.0)
    for block in range(blocks):
        out = target + 98 * block
        columns = columns_of(importance, block, blocks_per_row)
        weigh(
            like,
            source + 1024 * block,
            columns,
            tiles,
            32,
            8,
            np.float32(2.0),
            np.float32(0.0),
        )
        largest = split_signs(like, tiles, 32, True)
        is_used = largest >= NO_SCALE
        largest = select(is_used, largest, splat(like, 1.0))
        set_zero(like, tiles + 4096, 32)
        scale = fit_on_grid(
            like,
            tiles,
            32,
            8,
            4,
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
        unit = code_scales(like, tiles, 32, scale, is_used)
        store_entries(like, tiles, 32, 8, 4, np.float32(8.0), table)
        if unit > 0:
            store_f16(out, 0, unit * GROWTH)
            _write(tiles, out)
        else:
            clear(out, 98)


def encode(source: int, target: int, blocks: int, table: int) -> None:
    _encode(source, target, blocks, blocks, 0, table)


def encode_weighted(source: int, target: int, rows: int, blocks_per_row: int, importance: int, table: int) -> None:
    _encode(source, target, rows * blocks_per_row, blocks_per_row, importance, table)


def decode(source: int, target: int, blocks: int, codebook: int) -> None:
    work = stack_bytes(8)
    for block in range(blocks):
        stored = source + 98 * block
        unit = load_f16(stored, 0)
        for number in range(8):
            bits = u32(stored + 66, number)
            scale = unit * (np.float32(0.5) + np.float32(bits >> 28)) * np.float32(0.5)
            for part in range(4):
                group = 4 * number + part
                codes = stored + 2 + 2 * group
                entry = join_halves(work, codebook, np.int64(load_byte(codes, 0)), np.int64(load_byte(codes, 1)))
                store_signed(target, 32 * block + group, entry, even_signs((bits >> (7 * part)) & 127), scale)
