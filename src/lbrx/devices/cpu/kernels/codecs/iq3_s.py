"""IQ3_S: 256 values as an f16 scale, 64 bytes of codes, 8 of their ninth bits, 32 of signs, 4 of scales: 110 bytes.

A code names a group of four; half a byte of the scales serves a sub-block of 32.
"""

from __future__ import annotations

import numpy as np

from lbrx.devices.cpu.kernels.codecs.codebook import join_halves, store_signed
from lbrx.devices.cpu.simd.elements import load_byte, load_f16
from lbrx.devices.cpu.simd.memory import stack_bytes


def decode(source: int, target: int, blocks: int, codebook: int) -> None:
    work = stack_bytes(8)
    for block in range(blocks):
        stored = source + 110 * block
        unit = load_f16(stored, 0)
        for group in range(32):
            number = group // 4
            ninth_bits = np.int64(load_byte(stored + 66, number)) >> (2 * (group % 4))
            first = np.int64(load_byte(stored + 2, 2 * group)) | ((ninth_bits & 1) << 8)
            second = np.int64(load_byte(stored + 2, 2 * group + 1)) | ((ninth_bits & 2) << 7)
            half = (load_byte(stored + 106, number // 2) >> (4 * (number % 2))) & 15
            scale = unit * np.float32(1 + 2 * np.int64(half))
            signs = np.int64(load_byte(stored + 74, group))
            store_signed(target, 32 * block + group, join_halves(work, codebook, first, second), signs, scale)
