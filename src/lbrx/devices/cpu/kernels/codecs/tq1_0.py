"""TQ1_0: 256 values of -1, 0 or 1 times an f16 scale, five to a byte, in 54 bytes.

A byte holds the digits of a number in base 3, first digit first, as a fraction of 256 rounded up. Bytes 0-31 hold
elements l + 32 k, bytes 32-47 elements 160 + l + 16 k, bytes 48-51 four elements 240 + l + 4 k; the scale comes last.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.kernels.codecs.halves import inverse
from lbrx.devices.cpu.kernels.codecs.ternary import largest_of_256, trits
from lbrx.devices.cpu.simd.elements import load_byte, load_f16, load_f32, store_byte, store_f16, store_f32
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.vectors import f32x16, f32x32, load_u8, store, store_u8, to_f32, to_i32


@jit
def _fraction(number: Any) -> Any:
    """number / 243 in units of 1/256, rounded up; the quotient is exact in f32 where it is whole."""
    return to_i32(to_f32(number * 256 + 242) / 243.0)


@jit
def _five_trits(like: Any, values: Any, factor: Any) -> Any:
    number = trits(like, values, 0, factor)
    for k in range(1, 5):
        number = number * 3 + trits(like, values, k, factor)
    return _fraction(number)


@jit
def _trit(value: Any, factor: Any) -> Any:
    scaled = value * factor
    return np.int64(1) + np.int64(scaled >= np.float32(0.5)) - np.int64(scaled <= np.float32(-0.5))


@jit
def _digit(fraction: Any, power: Any) -> Any:
    """The digit that comes first after a fraction was multiplied by a power of 3."""
    return (((fraction * power) & 255) * 3) >> 8


def encode(source: int, target: int, blocks: int) -> None:
    for block in range(blocks):
        values, out = source + 1024 * block, target + 54 * block
        scale = largest_of_256(values)
        factor = inverse(scale)
        store_f16(out + 52, 0, scale)
        store_u8(out, _five_trits(f32x32(0.0), values, factor))
        store_u8(out + 32, _five_trits(f32x16(0.0), values + 640, factor))
        for byte in range(4):
            number = 0
            for k in range(4):
                number = 3 * number + _trit(load_f32(values + 960, byte + 4 * k), factor)
            store_byte(out + 48, byte, np.uint8((3 * number * 256 + 242) // 243))


def decode(source: int, target: int, blocks: int) -> None:
    for block in range(blocks):
        stored, out = source + 54 * block, target + 1024 * block
        scale = load_f16(stored + 52, 0)
        first, second = load_u8(f32x32(0.0), stored), load_u8(f32x16(0.0), stored + 32)
        power = 1
        for k in range(5):
            store(out, k, to_f32(_digit(first, power) - 1) * scale)
            store(out + 640, k, to_f32(_digit(second, power) - 1) * scale)
            if k < 4:
                for byte in range(4):
                    digit = _digit(np.int64(load_byte(stored + 48, byte)), power)
                    store_f32(out + 960, 4 * k + byte, np.float32(digit - 1) * scale)
            power *= 3
