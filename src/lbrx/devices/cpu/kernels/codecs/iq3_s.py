"""IQ3_S: 256 values as an f16 scale, 64 bytes of codes, 8 of their ninth bits, 32 of signs, 4 of scales: 110 bytes.

A code names a group of four; half a byte of the scales serves a sub-block of 32.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.kernels.codecs.codebook import join_halves, store_signed
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
from lbrx.devices.cpu.simd.vectors import f32x8, select, splat

ROWS = 8**4  # of the table
TOP, WHOLE = np.float32(7.0), np.float32(15.0)
TRIES, STEP = 9, np.float32(0.2)
GROWTH = np.float32(1.033)


@jit
def _write(tiles: Any, target: Any) -> None:
    for number in range(8):
        ninth_bits = 0
        for part in range(8):
            entry = peek_i32(tiles + 5120, 8 * part + number)
            store_byte(target + 2, 8 * number + part, np.uint8(entry & 255))
            ninth_bits |= (entry >> 8) << part
        store_byte(target + 66, number, np.uint8(ninth_bits))
        for part in range(4):
            store_byte(target + 74, 4 * number + part, np.uint8(peek_i32(tiles + 6144, 8 * part + number)))
    for pair in range(4):
        first, second = peek_i32(tiles + 6656, 2 * pair), peek_i32(tiles + 6656, 2 * pair + 1)
        store_byte(target + 106, pair, np.uint8(first | (second << 4)))


@jit
def _encode(source: Any, target: Any, blocks: Any, blocks_per_row: Any, importance: Any, table: Any) -> None:
    tiles = stack_bytes(TILES_BYTES)
    like = f32x8(0.0)
    for block in range(blocks):
        out = target + 110 * block
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
        largest = split_signs(like, tiles, 32, False)
        is_used = largest > 0.0
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
            1,
            table,
            ROWS,
        )
        unit = code_scales(like, tiles, 32, scale, is_used)
        store_entries(like, tiles, 32, 8, 4, np.float32(8.0), table)
        if unit > 0:
            store_f16(out, 0, unit * GROWTH)
            _write(tiles, out)
        else:
            clear(out, 110)


def encode(source: int, target: int, blocks: int, table: int) -> None:
    _encode(source, target, blocks, blocks, 0, table)


def encode_weighted(source: int, target: int, rows: int, blocks_per_row: int, importance: int, table: int) -> None:
    _encode(source, target, rows * blocks_per_row, blocks_per_row, importance, table)


def decode(source: int, target: int, blocks: int, codebook: int) -> None:
    work = stack_bytes(8)
    for block in range(blocks):
        stored = source + 110 * block
        unit = load_f16(stored, 0)
        for group in range(32):
            number = group // 4
            ninth_bits = np.int64(load_byte(stored + 66, number)) >> (2 * (group % 4))
            first = np.int64(load_byte(stored + 2, 2 * group)) | ((ninth_bits & 1) << 8)
            second = np.int64(load_byte(stored + 2, 2 * group + 1)) | ((ninth_bits & 2) << 7)
            half = (load_byte(stored + 106, number // 2) >> (4 * (number % 2))) & 15
            scale = unit * np.float32(1 + 2 * np.int64(half))
            signs = np.int64(load_byte(stored + 74, group))
            store_signed(target, 32 * block + group, join_halves(work, codebook, first, second), signs, scale)
