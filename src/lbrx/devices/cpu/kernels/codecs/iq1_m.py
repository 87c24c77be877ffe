"""IQ1_M: 256 values as 32 bytes of codes, 16 of high bits and shifts, 8 of scales: 56 bytes.

Half a byte has three high bits of a code and the sign of its group's shift. The scales are four times 16 bits: four
times three bits, each for two groups, and on top a quarter of the f16 that scales them all.
"""

from __future__ import annotations

import numpy as np

from lbrx.devices.cpu.kernels.codecs.codebook import DELTA, store_shifted, u16
from lbrx.devices.cpu.simd.elements import load_byte, load_f16, store_i32
from lbrx.devices.cpu.simd.memory import stack_bytes


def decode(source: int, target: int, blocks: int, codebook: int) -> None:
    work = stack_bytes(8)
    for block in range(blocks):
        stored = source + 56 * block
        scales = stored + 48
        half_bits = 0
        for number in range(4):
            half_bits |= (u16(scales, number) >> 12) << (4 * number)
        store_i32(work, 0, np.int32(half_bits))
        unit = load_f16(work, 0)
        for group in range(32):
            scale = unit * np.float32(2 * ((u16(scales, group // 8) >> (3 * (group // 2 % 4))) & 7) + 1)
            extra = (np.int64(load_byte(stored + 32, group // 2)) >> (4 * (group % 2))) & 15
            code = np.int64(load_byte(stored, group)) | ((extra & 7) << 8)
            delta = -DELTA if extra & 8 else DELTA
            store_shifted(target, 32 * block + group, codebook + 8 * code, delta, scale)
