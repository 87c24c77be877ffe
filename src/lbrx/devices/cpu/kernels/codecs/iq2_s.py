"""IQ2_S: 256 values as an f16 scale, 32 bytes of codes, 32 of signs, 8 of high bits of codes, 8 of scales: 82 bytes.

Two bits of a byte of high bits belong to each of four groups of eight; half a byte of the scales serves two groups.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.kernels.codecs.codebook import store_signed
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
from lbrx.devices.cpu.simd.elements import load_byte, load_f16, store_byte, store_f16
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.memory import peek_i32, stack_bytes
from lbrx.devices.cpu.simd.vectors import f32x16, select, splat

ROWS = 3**8  # of the table
TOP, WHOLE = np.float32(2.0), np.float32(5.0)
TRIES, STEP = 9, np.float32(0.1)
NO_SCALE = np.float32(1e-8)  # a sub-block whose values are all smaller has no scale
SHRINK = np.float32(0.9875)


@jit
def _write(tiles: Any, target: Any) -> None:
    for quad in range(8):
        high_bits = 0
        for k in range(4):
            number, part = 2 * quad + k // 2, k % 2
            entry, signs = peek_i32(tiles + 5120, 16 * part + number), peek_i32(tiles + 6144, 16 * part + number)
            store_byte(target + 2, 4 * quad + k, np.uint8(entry & 255))
            store_byte(target + 34, 4 * quad + k, np.uint8(signs))
            high_bits |= (entry >> 8) << (2 * k)
        store_byte(target + 66, quad, np.uint8(high_bits))
        first, second = peek_i32(tiles + 6656, 2 * quad), peek_i32(tiles + 6656, 2 * quad + 1)
        store_byte(target + 74, quad, np.uint8(first | (second << 4)))


@jit
def _encode(source: Any, target: Any, blocks: Any, blocks_per_row: Any, importance: Any, table: Any) -> None:
    tiles = stack_bytes(TILES_BYTES)
    like = f32x16(0.0)
    for block in range(blocks):
        out = target + 82 * block
        columns = columns_of(importance, block, blocks_per_row)
        weigh(
            like,
            source + 1024 * block,
            columns,
            tiles,
            16,
            16,
            np.float32(2.0),
            np.float32(0.25),
        )
        largest = split_signs(like, tiles, 16, False)
        is_used = largest >= NO_SCALE
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
            store_f16(out, 0, unit * SHRINK)
            _write(tiles, out)
        else:
            clear(out, 82)


def encode(source: int, target: int, blocks: int, table: int) -> None:
    _encode(source, target, blocks, blocks, 0, table)


def encode_weighted(source: int, target: int, rows: int, blocks_per_row: int, importance: int, table: int) -> None:
    _encode(source, target, rows * blocks_per_row, blocks_per_row, importance, table)


def decode(source: int, target: int, blocks: int, codebook: int) -> None:
    for block in range(blocks):
        stored = source + 82 * block
        unit = load_f16(stored, 0)
        for group in range(32):
            high_bits = (np.int64(load_byte(stored + 66, group // 4)) >> (2 * (group % 4))) & 3
            code = np.int64(load_byte(stored + 2, group)) | (high_bits << 8)
            half = (load_byte(stored + 74, group // 4) >> (4 * (group // 2 % 2))) & 15
            scale = unit * (np.float32(0.5) + np.float32(half)) * np.float32(0.25)
            signs = np.int64(load_byte(stored + 34, group))
            store_signed(target, 32 * block + group, codebook + 8 * code, signs, scale)
