"""Q8_0: blocks of 32 as an f16 scale and 32 signed bytes, in 34 bytes."""

from __future__ import annotations

import numpy as np

from lbrx.devices.cpu.kernels.codecs.halves import inverse, largest_magnitude, load_half
from lbrx.devices.cpu.simd.elements import load_f16, store_f16
from lbrx.devices.cpu.simd.f32 import nearest_away
from lbrx.devices.cpu.simd.vectors import clamp, f32x16, load_i8, store, store_u8, to_f32, to_i32


def encode(source: int, target: int, blocks: int) -> None:
    for block in range(blocks):
        values, out = source + 128 * block, target + 34 * block
        scale = largest_magnitude(values) / np.float32(127.0)
        factor = inverse(scale)
        store_f16(out, 0, scale)
        for half in range(2):
            rounded = nearest_away(load_half(values, half) * factor)
            store_u8(out + 2 + 16 * half, to_i32(clamp(rounded, -128.0, 127.0)))


def decode(source: int, target: int, blocks: int) -> None:
    for block in range(blocks):
        stored, out = source + 34 * block, target + 128 * block
        scale = load_f16(stored, 0)
        for half in range(2):
            store(out, half, to_f32(load_i8(f32x16(0.0), stored + 2 + 16 * half)) * scale)
