"""IQ3_XXS: 256 values as an f16 scale, 64 bytes that name groups of four, 8 times 32 bits of signs and scale: 98 bytes.

The 32 bits of a sub-block of 32 are four times seven signs, and a scale on top.
"""

from __future__ import annotations

import numpy as np

from lbrx.devices.cpu.kernels.codecs.codebook import even_signs, join_halves, store_signed, u32
from lbrx.devices.cpu.simd.elements import load_byte, load_f16
from lbrx.devices.cpu.simd.memory import stack_bytes


def decode(source: int, target: int, blocks: int, codebook: int) -> None:
    work = stack_bytes(8)
    for block in range(blocks):
        stored = source + 98 * block
        unit = load_f16(stored, 0)
        for number in range(8):
            bits = u32(stored + 66, number)
            scale = unit * (np.float32(0.5) + np.float32(bits >> 28)) * np.float32(0.5)
            for part in range(4):
                group = 4 * number + part
                codes = stored + 2 + 2 * group
                entry = join_halves(work, codebook, np.int64(load_byte(codes, 0)), np.int64(load_byte(codes, 1)))
                store_signed(target, 32 * block + group, entry, even_signs((bits >> (7 * part)) & 127), scale)
