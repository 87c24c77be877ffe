"""IQ2_XS: 256 values as an f16 scale, 32 groups of eight in 16 bits each, 8 bytes of scales: 74 bytes.

A group has nine bits that name it and seven signs; half a byte of the scales serves two groups.
"""

from __future__ import annotations

import numpy as np

from lbrx.devices.cpu.kernels.codecs.codebook import even_signs, store_signed, u16
from lbrx.devices.cpu.simd.elements import load_byte, load_f16


def decode(source: int, target: int, blocks: int, codebook: int) -> None:
    for block in range(blocks):
        stored = source + 74 * block
        unit = load_f16(stored, 0)
        for group in range(32):
            code = u16(stored + 2, group)
            half = (load_byte(stored + 66, group // 4) >> (4 * (group // 2 % 2))) & 15
            scale = unit * (np.float32(0.5) + np.float32(half)) * np.float32(0.25)
            store_signed(target, 32 * block + group, codebook + 8 * (code & 511), even_signs(code >> 9), scale)
