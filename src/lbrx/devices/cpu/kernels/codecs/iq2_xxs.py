"""IQ2_XXS: 256 values as an f16 scale and 8 sub-blocks of 32 in 8 bytes each, together 66 bytes.

A sub-block has four bytes that name groups of eight values, and 32 bits: four times seven signs, and a scale on top.
"""

from __future__ import annotations

import numpy as np

from lbrx.devices.cpu.kernels.codecs.codebook import even_signs, store_signed, u32
from lbrx.devices.cpu.simd.elements import load_byte, load_f16


def decode(source: int, target: int, blocks: int, codebook: int) -> None:
    for block in range(blocks):
        stored = source + 66 * block
        unit = load_f16(stored, 0)
        for number in range(8):
            codes = stored + 2 + 8 * number
            bits = u32(codes, 1)
            scale = unit * (np.float32(0.5) + np.float32(bits >> 28)) * np.float32(0.25)
            for group in range(4):
                entry = codebook + 8 * np.int64(load_byte(codes, group))
                signs = even_signs((bits >> (7 * group)) & 127)
                store_signed(target, 32 * block + 4 * number + group, entry, signs, scale)
