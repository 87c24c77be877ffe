"""Q5_K: 256 values as 8 sub-blocks of 32, in 176 bytes: 16 bytes of scales as in Q4_K, 32 of fifth bits, 128 of codes.

Bit s of byte l of the fifth bits belongs to element l of sub-block s; the low four bits lie as in Q4_K.
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
    for i in range(32):
        fifth_bits = 0
        for pair in range(4):
            low, high = peek_i32(levels, 8 * i + 2 * pair), peek_i32(levels, 8 * i + 2 * pair + 1)
            fifth_bits |= ((low >> 4) | ((high >> 4) << 1)) << (2 * pair)
            store_byte(target, 32 + 32 * pair + i, np.uint8((low & 15) | ((high & 15) << 4)))
        store_byte(target, i, np.uint8(fifth_bits))


encode, encode_weighted = make_encoders(176, np.float32(31.0), (np.float32(-0.5), np.float32(0.1), 15), _pack)


def decode(source: int, target: int, blocks: int) -> None:
    for block in range(blocks):
        stored, out = source + 176 * block, target + 1024 * block
        units = load_units(stored)
        fifth_bits = load_u8(f32x32(0.0), stored + 16)
        for pair in range(4):
            codes = load_u8(f32x32(0.0), stored + 48 + 32 * pair)
            first = (codes & 15) | (((fifth_bits >> (2 * pair)) & 1) << 4)
            second = (codes >> 4) | (((fifth_bits >> (2 * pair + 1)) & 1) << 4)
            store_pair(stored, units, out, pair, first, second)
