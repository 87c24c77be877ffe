"""Finding values that are not finite by their bits: all bits of the exponent are set."""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.simd.elements import load_i32, store_byte
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.vectors import f32x16, load, mask_bits, select, splat, to_i32

LANES = 16


@jit
def has_all_bits(address: Any, words: Any, low: Any, high: Any) -> Any:
    """Whether some 32-bit word has all bits of ``low`` or all bits of ``high``."""
    zeros = to_i32(f32x16(0.0))
    ones, lows, highs = splat(zeros, 1), splat(zeros, low), splat(zeros, high)
    hits, vectors = zeros, words // LANES
    for number in range(vectors):
        word = load(zeros, address, number)
        hits = hits | select((word & lows) == lows, ones, zeros) | select((word & highs) == highs, ones, zeros)
    is_found = mask_bits(hits != zeros) != 0
    for number in range(vectors * LANES, words):
        word = np.int64(load_i32(address, number))
        is_found |= (word & low) == low or (word & high) == high
    return is_found


def find(address: int, words: int, low: int, high: int, flag: int) -> None:
    """Set the byte at ``flag`` if some word has all bits of ``low`` or of ``high``."""
    if has_all_bits(address, words, low, high):
        store_byte(flag, 0, 1)
