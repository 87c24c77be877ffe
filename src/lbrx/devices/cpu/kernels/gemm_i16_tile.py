"""Four or eight rows of i16 times a panel of sixteen vectors: the inner step of products of i16.

The i16 of four rows lie together, 32 of each in turn; a panel has two elements of all its vectors in 64 bytes.
"""

from __future__ import annotations

from typing import Any

from lbrx.devices.cpu.simd.i16 import add_products, load_panel, spread_pair
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.processor import HAS_512_BITS
from lbrx.devices.cpu.simd.vectors import i32x16

FOURS = 2 if HAS_512_BITS else 1
"""How many times four rows are multiplied at a time: more where registers are larger and more."""


@jit
def four_sums() -> Any:
    """Zeros for four rows."""
    return i32x16(0), i32x16(0), i32x16(0), i32x16(0)


@jit
def add_pair(rows: Any, x: Any, sums: Any) -> Any:
    """Two elements of four rows, times those of a panel, added to their sums."""
    a, b, c, d = sums
    numbers = load_panel(x)
    a = add_products(spread_pair(rows), numbers, a)
    b = add_products(spread_pair(rows + 64), numbers, b)
    c = add_products(spread_pair(rows + 128), numbers, c)
    d = add_products(spread_pair(rows + 192), numbers, d)
    return a, b, c, d
