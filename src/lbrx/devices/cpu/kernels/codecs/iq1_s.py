"""IQ1_S: 256 values as an f16 scale, 32 bytes of codes, 8 times 16 bits: 50 bytes.

The 16 bits of a sub-block of 32 are three high bits for each of its four codes, three of a scale, and the sign of the
shift of all values. A code names a group of eight.
"""

from __future__ import annotations

import numpy as np

from lbrx.devices.cpu.kernels.codecs.codebook import DELTA, store_shifted, u16
from lbrx.devices.cpu.simd.elements import load_byte, load_f16


def decode(source: int, target: int, blocks: int, codebook: int) -> None:
    for block in range(blocks):
        stored = source + 50 * block
        unit = load_f16(stored, 0)
        for number in range(8):
            bits = u16(stored + 34, number)
            scale = unit * np.float32(2 * ((bits >> 12) & 7) + 1)
            delta = -DELTA if bits & 0x8000 else DELTA
            for part in range(4):
                group = 4 * number + part
                code = np.int64(load_byte(stored + 2, group)) | (((bits >> (3 * part)) & 7) << 8)
                store_shifted(target, 32 * block + group, codebook + 8 * code, delta, scale)
