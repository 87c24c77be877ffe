"""Q4_K: 256 values as 8 sub-blocks of 32, in 144 bytes: f16 d and dmin, 12 bytes of 6-bit scales, 128 of codes.

A value is d scale code - dmin minimum. Byte 32 p + l of the codes holds element l of sub-blocks 2 p and 2 p + 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.kernels.codecs.super_blocks_32 import load_units, make_encoders, store_pair
from lbrx.devices.cpu.simd.elements import store_byte
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.memory import peek_i32
from lbrx.devices.cpu.simd.vectors import f32x32, load_u8


@jit
def _pack(levels: Any, target: Any) -> None:
    for pair in range(4):
        for i in range(32):
            low, high = peek_i32(levels, 8 * i + 2 * pair), peek_i32(levels, 8 * i + 2 * pair + 1)
            store_byte(target, 32 * pair + i, np.uint8(low | (high << 4)))


encode, encode_weighted = make_encoders(144, np.float32(15.0), (np.float32(-1.0), np.float32(0.1), 20), _pack)


def decode(source: int, target: int, blocks: int) -> None:
    for block in range(blocks):
        stored, out = source + 144 * block, target + 1024 * block
        units = load_units(stored)
        for pair in range(4):
            codes = load_u8(f32x32(0.0), stored + 16 + 32 * pair)
            store_pair(stored, units, out, pair, codes & 15, codes >> 4)
