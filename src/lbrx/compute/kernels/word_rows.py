"""Four rows of words times a panel of sixteen vectors, two elements at a time: the inner step of products of i16.

Words of four rows lie together, 32 of each in turn; a panel has two elements of all its vectors in 64 bytes.
"""

from __future__ import annotations

from typing import Any

from lbrx.compute.kernels.words import add_products, load_words, spread_pair
from lbrx.quants.kernels.vectors import jit


@jit
def add_pair(words: Any, x: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any) -> Any:
    """Two elements of four rows, times those of a panel, added to eight vectors of sums."""
    left, right = load_words(x), load_words(x + 32)
    row = spread_pair(words)
    a, b = add_products(row, left, a), add_products(row, right, b)
    row = spread_pair(words + 64)
    c, d = add_products(row, left, c), add_products(row, right, d)
    row = spread_pair(words + 128)
    e, f = add_products(row, left, e), add_products(row, right, f)
    row = spread_pair(words + 192)
    g, h = add_products(row, left, g), add_products(row, right, h)
    return a, b, c, d, e, f, g, h
