"""IQ2_S: 256 values as an f16 scale, 32 bytes of codes, 32 of signs, 8 of high bits of codes, 8 of scales: 82 bytes.

Two bits of a byte of high bits belong to each of four groups of eight; half a byte of the scales serves two groups.
"""

from __future__ import annotations

import numpy as np

from lbrx.devices.cpu.kernels.codecs.codebook import store_signed
from lbrx.devices.cpu.simd.elements import load_byte, load_f16


def decode(source: int, target: int, blocks: int, codebook: int) -> None:
    for block in range(blocks):
        stored = source + 82 * block
        unit = load_f16(stored, 0)
        for group in range(32):
            high_bits = (np.int64(load_byte(stored + 66, group // 4)) >> (2 * (group % 4))) & 3
            code = np.int64(load_byte(stored + 2, group)) | (high_bits << 8)
            half = (load_byte(stored + 74, group // 4) >> (4 * (group // 2 % 2))) & 15
            scale = unit * (np.float32(0.5) + np.float32(half)) * np.float32(0.25)
            signs = np.int64(load_byte(stored + 34, group))
            store_signed(target, 32 * block + group, codebook + 8 * code, signs, scale)
