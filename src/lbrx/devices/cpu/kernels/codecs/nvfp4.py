"""NVFP4: 64 values as 4 sub-blocks of 16 floats of four bits (E2M1), in 36 bytes: 4 scales (unsigned E4M3), codes.

Byte 8 s + l of the codes holds elements l and l + 8 of sub-block s.
"""

from __future__ import annotations

import numpy as np

from lbrx.devices.cpu.kernels.codecs.small_floats import e2m1_values, half_of_unsigned_e4m3, nearest_e2m1, unsigned_e4m3
from lbrx.devices.cpu.simd.elements import load_byte, store_byte
from lbrx.devices.cpu.simd.f32 import absolute
from lbrx.devices.cpu.simd.vectors import f32x8, lane_max, load, load_u8, maximum, store, store_u8


def encode(source: int, target: int, blocks: int) -> None:
    like = f32x8(0.0)
    for sub_block in range(4 * blocks):
        block, number = sub_block // 4, sub_block % 4
        out = target + 36 * block
        first, second = load(like, source, 2 * sub_block), load(like, source, 2 * sub_block + 1)
        largest = lane_max(maximum(absolute(first), absolute(second)))
        code = unsigned_e4m3(largest / np.float32(6.0))
        half_scale = half_of_unsigned_e4m3(code)
        store_byte(out, number, np.uint8(code))
        if half_scale == 0:
            first, second = like, like
        codes = nearest_e2m1(first, half_scale) | (nearest_e2m1(second, half_scale) << 4)
        store_u8(out + 4 + 8 * number, codes)


def decode(source: int, target: int, blocks: int) -> None:
    like = f32x8(0.0)
    for sub_block in range(4 * blocks):
        stored, number = source + 36 * (sub_block // 4), sub_block % 4
        half_scale = half_of_unsigned_e4m3(np.int64(load_byte(stored, number)))
        codes = load_u8(like, stored + 4 + 8 * number)
        store(target, 2 * sub_block, e2m1_values(codes & 15, half_scale))
        store(target, 2 * sub_block + 1, e2m1_values(codes >> 4, half_scale))
