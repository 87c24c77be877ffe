"""Q2_K: 256 values as 16 sub-blocks of 16, in 84 bytes: 16 of scales, 64 of codes, f16 d and dmin.

A value is d scale code - dmin minimum; a scale is the low and a minimum the high half of a byte. Byte 32 h + l of the
codes holds elements l, l + 32, l + 64 and l + 96 of half h.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.kernels.codecs.super_blocks import code_plain, code_weighted, pack_two_bits, spread_weighted
from lbrx.devices.cpu.simd.elements import load_byte, load_f16
from lbrx.devices.cpu.simd.f32 import absolute
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.lanes import spread
from lbrx.devices.cpu.simd.memory import stack_bytes
from lbrx.devices.cpu.simd.vectors import f32x16, load, load_u8, store, store_u8, to_f32

TOP, SCALE_TOP = np.float32(3.0), np.float32(15.0)
SEARCH = (np.float32(-0.5), np.float32(0.1), 15)


@jit
def _finish(tiles: Any, target: Any, scales: Any, lows: Any) -> None:
    store_u8(target, scales | (lows << 4))
    pack_two_bits(tiles + 2048, target + 16)


def encode(source: int, target: int, blocks: int) -> None:
    tiles = stack_bytes(3072)
    like = f32x16(0.0)
    for block in range(blocks):
        out = target + 84 * block
        spread(source + 1024 * block, tiles, 16, 16)
        for i in range(16):
            store(tiles + 1024, i, absolute(load(like, tiles, i)))
        scales, lows = code_plain(like, tiles, out + 80, 16, TOP, SCALE_TOP, SEARCH, True)
        _finish(tiles, out, scales, lows)


def encode_weighted(source: int, target: int, rows: int, blocks_per_row: int, importance: int) -> None:
    tiles = stack_bytes(3072)
    like = f32x16(0.0)
    for block in range(rows * blocks_per_row):
        out = target + 84 * block
        column = 1024 * (block % blocks_per_row)
        spread_weighted(like, source + 1024 * block, importance + column, tiles, 16, 16, np.float32(1.0))
        scales, lows = code_weighted(like, tiles, out + 80, 16, 16, TOP, SCALE_TOP)
        _finish(tiles, out, scales, lows)


def decode(source: int, target: int, blocks: int) -> None:
    for block in range(blocks):
        stored, out = source + 84 * block, target + 1024 * block
        unit, low_unit = load_f16(stored + 80, 0), load_f16(stored + 80, 1)
        for number in range(16):
            half, part = number // 8, number % 8
            codes = load_u8(f32x16(0.0), stored + 16 + 32 * half + 16 * (part % 2)) >> (2 * (part // 2))
            both = load_byte(stored, number)
            scale, low = unit * np.float32(both & 15), low_unit * np.float32(both >> 4)
            store(out, number, to_f32(codes & 3) * scale - low)
