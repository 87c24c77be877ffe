"""Packing of 4- and 2-bit integers: the first element lies in the lowest bits of a byte."""

from __future__ import annotations

import numpy as np

from lbrx.tensors.storage import Bytes


def packed(values: Bytes, bits: int) -> Bytes:
    """The low bits of each byte, packed.

    >>> packed(np.array([1, 2, 3], np.uint8), 4).tolist()
    [33, 3]
    """
    per_byte = 8 // bits
    whole = np.zeros(-(-values.size // per_byte) * per_byte, np.uint8)
    whole[: values.size] = values
    whole &= (1 << bits) - 1
    out = whole[::per_byte].copy()
    for position in range(1, per_byte):
        out |= whole[position::per_byte] << (position * bits)
    return out
