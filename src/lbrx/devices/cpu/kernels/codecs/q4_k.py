"""Q4_K: 256 values as 8 sub-blocks of 32, in 144 bytes: f16 d and dmin, 12 bytes of 6-bit scales, 128 of codes.

A value is d scale code - dmin minimum. Byte 32 p + l of the codes holds element l of sub-blocks 2 p and 2 p + 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.kernels.codecs.super_blocks import six_bit_pair
from lbrx.devices.cpu.kernels.codecs.super_blocks_32 import TILES_BYTES, code_block, code_block_weighted
from lbrx.devices.cpu.simd.elements import load_f16, store_byte
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.memory import peek_i32, stack_bytes
from lbrx.devices.cpu.simd.vectors import f32x32, load_u8, store, to_f32

TOP = np.float32(15.0)
SEARCH = (np.float32(-1.0), np.float32(0.1), 20)


@jit
def _pack(levels: Any, target: Any) -> None:
    for pair in range(4):
        for i in range(32):
            low, high = peek_i32(levels, 8 * i + 2 * pair), peek_i32(levels, 8 * i + 2 * pair + 1)
            store_byte(target, 32 * pair + i, np.uint8(low | (high << 4)))


def encode(source: int, target: int, blocks: int) -> None:
    tiles = stack_bytes(TILES_BYTES)
    for block in range(blocks):
        out = target + 144 * block
        code_block(source + 1024 * block, tiles, out, TOP, SEARCH)
        _pack(tiles + 2048, out + 16)


def encode_weighted(source: int, target: int, rows: int, blocks_per_row: int, importance: int) -> None:
    tiles = stack_bytes(TILES_BYTES)
    for block in range(rows * blocks_per_row):
        out = target + 144 * block
        code_block_weighted(source + 1024 * block, importance + 1024 * (block % blocks_per_row), tiles, out, TOP)
        _pack(tiles + 2048, out + 16)


def decode(source: int, target: int, blocks: int) -> None:
    for block in range(blocks):
        stored, out = source + 144 * block, target + 1024 * block
        unit, low_unit = load_f16(stored, 0), load_f16(stored, 1)
        for pair in range(4):
            codes = load_u8(f32x32(0.0), stored + 16 + 32 * pair)
            scale, low = six_bit_pair(stored + 4, 2 * pair)
            store(out, 2 * pair, to_f32(codes & 15) * (unit * np.float32(scale)) - low_unit * np.float32(low))
            scale, low = six_bit_pair(stored + 4, 2 * pair + 1)
            store(out, 2 * pair + 1, to_f32(codes >> 4) * (unit * np.float32(scale)) - low_unit * np.float32(low))
