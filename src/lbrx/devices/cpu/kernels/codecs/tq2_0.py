"""TQ2_0: 256 values of -1, 0 or 1 times an f16 scale, two bits each, in 66 bytes.

In either half of the block, byte l holds elements l, l + 32, l + 64 and l + 96; the scale comes last.
"""

from __future__ import annotations

from lbrx.devices.cpu.kernels.codecs.halves import inverse
from lbrx.devices.cpu.kernels.codecs.ternary import largest_of_256, trits
from lbrx.devices.cpu.simd.elements import load_f16, store_f16
from lbrx.devices.cpu.simd.vectors import f32x32, load_u8, store, store_u8, to_f32


def encode(source: int, target: int, blocks: int) -> None:
    like = f32x32(0.0)
    for block in range(blocks):
        values, out = source + 1024 * block, target + 66 * block
        scale = largest_of_256(values)
        factor = inverse(scale)
        store_f16(out + 64, 0, scale)
        for half in range(2):
            codes = trits(like, values, 4 * half, factor)
            for k in range(1, 4):
                codes = codes | (trits(like, values, 4 * half + k, factor) << (2 * k))
            store_u8(out + 32 * half, codes)


def decode(source: int, target: int, blocks: int) -> None:
    like = f32x32(0.0)
    for block in range(blocks):
        stored, out = source + 66 * block, target + 1024 * block
        scale = load_f16(stored + 64, 0)
        for half in range(2):
            codes = load_u8(like, stored + 32 * half)
            for k in range(4):
                store(out, 4 * half + k, to_f32(((codes >> (2 * k)) & 3) - 1) * scale)
