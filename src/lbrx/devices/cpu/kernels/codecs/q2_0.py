"""Q2_0: blocks of 64 as an f16 scale, the largest magnitude, and 64 codes of two bits: a value is (code - 1) scale."""

from __future__ import annotations

import numpy as np

from lbrx.devices.cpu.kernels.codecs.halves import inverse
from lbrx.devices.cpu.simd.elements import load_byte, load_f16, store_byte, store_f16, store_f32
from lbrx.devices.cpu.simd.f32 import absolute, nearest_away
from lbrx.devices.cpu.simd.memory import peek_i32, stack_bytes
from lbrx.devices.cpu.simd.vectors import clamp, f32x16, lane_max, load, maximum, store, to_i32


def encode(source: int, target: int, blocks: int) -> None:
    codes = stack_bytes(256)
    like = f32x16(0.0)
    for block in range(blocks):
        values, out = source + 256 * block, target + 18 * block
        largest = absolute(load(like, values, 0))
        for number in range(1, 4):
            largest = maximum(absolute(load(like, values, number)), largest)
        scale = lane_max(largest)
        factor = inverse(scale)
        store_f16(out, 0, scale)
        for number in range(4):
            levels = clamp(nearest_away(load(like, values, number) * factor), -1.0, 2.0)
            store(codes, number, to_i32(levels + np.float32(1.0)))
        for number in range(16):
            byte = 0
            for k in range(4):
                byte |= peek_i32(codes, 4 * number + k) << (2 * k)
            store_byte(out + 2, number, np.uint8(byte))


def decode(source: int, target: int, blocks: int) -> None:
    for block in range(blocks):
        stored, out = source + 18 * block, target + 256 * block
        scale = load_f16(stored, 0)
        for i in range(64):
            code = (load_byte(stored + 2, i // 4) >> (2 * (i % 4))) & 3
            store_f32(out, i, np.float32(np.int64(code) - 1) * scale)
