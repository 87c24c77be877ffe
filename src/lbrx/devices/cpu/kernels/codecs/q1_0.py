"""Q1_0: blocks of 128 as an f16 scale, the mean magnitude, and 128 bits, set for values that are not negative."""

from __future__ import annotations

import numpy as np

from lbrx.devices.cpu.simd.elements import load_byte, load_f16, load_f32, store_byte, store_f16
from lbrx.devices.cpu.simd.scalars import fabs
from lbrx.devices.cpu.simd.vectors import f32x8, load, mask_bits, splat, store, to_f32, unpack_bits


def encode(source: int, target: int, blocks: int) -> None:
    like = f32x8(0.0)
    for block in range(blocks):
        values, out = source + 512 * block, target + 18 * block
        total = np.float32(0.0)
        for i in range(128):
            total += fabs(load_f32(values, i))
        store_f16(out, 0, total / np.float32(128.0))
        for number in range(16):
            store_byte(out + 2, number, np.uint8(mask_bits(load(like, values, number) >= 0.0)))


def decode(source: int, target: int, blocks: int) -> None:
    like = f32x8(0.0)
    for block in range(blocks):
        stored, out = source + 18 * block, target + 512 * block
        scale = splat(like, load_f16(stored, 0))
        for number in range(16):
            bits = unpack_bits(like, np.int64(load_byte(stored + 2, number)))
            store(out, number, to_f32((bits << 1) - 1) * scale)
