"""MXFP4: blocks of 32 as an exponent (E8M0) and 32 floats of four bits (E2M1), in 17 bytes."""

from __future__ import annotations

import numpy as np

from lbrx.devices.cpu.kernels.codecs.halves import (
    high_nibbles,
    largest_magnitude,
    load_half,
    low_nibbles,
    store_nibbles,
)
from lbrx.devices.cpu.kernels.codecs.small_floats import e2m1_values, e8m0_of_largest, half_of_e8m0, nearest_e2m1
from lbrx.devices.cpu.simd.elements import load_byte, store_byte
from lbrx.devices.cpu.simd.vectors import store


def encode(source: int, target: int, blocks: int) -> None:
    for block in range(blocks):
        values, out = source + 128 * block, target + 17 * block
        exponent = e8m0_of_largest(largest_magnitude(values))
        half_scale = half_of_e8m0(exponent)
        store_byte(out, 0, np.uint8(exponent))
        first = nearest_e2m1(load_half(values, 0), half_scale)
        store_nibbles(out + 1, first, nearest_e2m1(load_half(values, 1), half_scale))


def decode(source: int, target: int, blocks: int) -> None:
    for block in range(blocks):
        stored, out = source + 17 * block, target + 128 * block
        half_scale = half_of_e8m0(np.int64(load_byte(stored, 0)))
        store(out, 0, e2m1_values(low_nibbles(stored + 1), half_scale))
        store(out, 1, e2m1_values(high_nibbles(stored + 1), half_scale))
