"""IQ4_XS: 256 values as 8 sub-blocks of 32 coded as in IQ4_NL, in 136 bytes: f16 d, 16 high bits of scales, 4 bytes
of their low halves, 128 of codes. A value is d (scale - 32) times the value of the code.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.kernels.codecs.halves import high_nibbles, low_nibbles
from lbrx.devices.cpu.kernels.codecs.nonlinear import decoded, fit_nonlinear_scale, store_nonlinear_codes
from lbrx.devices.cpu.kernels.codecs.super_blocks import spread_weighted
from lbrx.devices.cpu.simd.elements import load_byte, load_f16, store_byte, store_f16
from lbrx.devices.cpu.simd.f32 import absolute, nearest_even
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.lanes import spread, weigh_by_square
from lbrx.devices.cpu.simd.memory import peek_i32, stack_bytes
from lbrx.devices.cpu.simd.scalars import first_set_bit
from lbrx.devices.cpu.simd.vectors import clamp, f32x8, lane, lane_max, mask_bits, store, to_i32

SCALE_BOUND = np.float32(32.0)
TILES_BYTES = 3 * 1024 + 32  # values, weights, codes, then the scales


@jit
def _pack_scales(scales: Any, target: Any) -> None:
    for pair in range(4):
        first, second = peek_i32(scales, 2 * pair), peek_i32(scales, 2 * pair + 1)
        store_byte(target, 2 + pair, np.uint8((first & 15) | ((second & 15) << 4)))
    for half in range(2):
        high_bits = 0
        for number in range(4):
            high_bits |= (peek_i32(scales, 4 * half + number) >> 4) << (2 * number)
        store_byte(target, half, np.uint8(high_bits))


@jit
def _finish(like: Any, tiles: Any, target: Any) -> None:
    scales = fit_nonlinear_scale(like, tiles, tiles + 1024)
    magnitudes = absolute(scales)
    extreme = lane(scales, first_set_bit(mask_bits(magnitudes >= lane_max(magnitudes))) & 7)
    unit = -extreme / SCALE_BOUND
    factor = np.float32(1.0) / unit if unit != 0 else np.float32(0.0)
    store_f16(target, 0, unit)
    levels = clamp(nearest_even(scales * factor), -SCALE_BOUND, SCALE_BOUND - np.float32(1.0))
    store(tiles + 3072, 0, to_i32(levels + SCALE_BOUND))
    _pack_scales(tiles + 3072, target + 2)
    store_nonlinear_codes(like, tiles, tiles + 2048, levels * unit)
    for number in range(8):
        for i in range(16):
            first, second = peek_i32(tiles + 2048, 8 * i + number), peek_i32(tiles + 2048, 8 * (i + 16) + number)
            store_byte(target + 8, 16 * number + i, np.uint8(first | (second << 4)))


def encode(source: int, target: int, blocks: int) -> None:
    tiles = stack_bytes(TILES_BYTES)
    like = f32x8(0.0)
    for block in range(blocks):
        spread(source + 1024 * block, tiles, 32, 8)
        weigh_by_square(like, tiles, tiles + 1024, 32)
        _finish(like, tiles, target + 136 * block)


def encode_weighted(source: int, target: int, rows: int, blocks_per_row: int, importance: int) -> None:
    tiles = stack_bytes(TILES_BYTES)
    like = f32x8(0.0)
    for block in range(rows * blocks_per_row):
        column = 1024 * (block % blocks_per_row)
        spread_weighted(like, source + 1024 * block, importance + column, tiles, 32, 8, np.float32(2.0))
        _finish(like, tiles, target + 136 * block)


def decode(source: int, target: int, blocks: int) -> None:
    for block in range(blocks):
        stored, out = source + 136 * block, target + 1024 * block
        unit = load_f16(stored, 0)
        for number in range(8):
            low_bits = load_byte(stored + 4, number // 2) >> (4 * (number % 2))
            high_bits = load_byte(stored + 2, number // 4) >> (2 * (number % 4))
            scale = unit * np.float32(np.int64((low_bits & 15) | ((high_bits & 3) << 4)) - 32)
            store(out, 2 * number, decoded(low_nibbles(stored + 8 + 16 * number), scale))
            store(out, 2 * number + 1, decoded(high_nibbles(stored + 8 + 16 * number), scale))
