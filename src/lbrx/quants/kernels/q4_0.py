"""Q4_0: blocks of 32 as an f16 scale and 32 codes of four bits, in 18 bytes; a value is (code - 8) scale."""

from __future__ import annotations

import numpy as np

from lbrx.devices.cpu.elements import ELEMENT_FUNCTIONS
from lbrx.quants.kernels.halves import (
    codes,
    extreme_value,
    high_nibbles,
    inverse,
    load_half,
    low_nibbles,
    store_nibbles,
)
from lbrx.quants.kernels.vectors import store, to_f32

load_f16, store_f16 = ELEMENT_FUNCTIONS["load_f16"], ELEMENT_FUNCTIONS["store_f16"]


def encode(source: int, target: int, blocks: int) -> None:
    for block in range(blocks):
        values, out = source + 128 * block, target + 18 * block
        scale = extreme_value(values) / np.float32(-8.0)
        factor = inverse(scale)
        store_f16(out, 0, scale)
        first = codes(load_half(values, 0) * factor + 8.5, 15.0)
        store_nibbles(out + 2, first, codes(load_half(values, 1) * factor + 8.5, 15.0))


def decode(source: int, target: int, blocks: int) -> None:
    for block in range(blocks):
        stored, out = source + 18 * block, target + 128 * block
        scale = load_f16(stored, 0)
        store(out, 0, to_f32(low_nibbles(stored + 2) - 8) * scale)
        store(out, 1, to_f32(high_nibbles(stored + 2) - 8) * scale)
