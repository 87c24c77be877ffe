"""Packing of 4- and 2-bit integers: the first element lies in the lowest bits of a byte."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import njit

from lbrx.storage import Bytes


@cache
def _packer() -> Any:
    @njit("void(uint8[::1], uint8[::1], int64)", nogil=True)
    def pack(values: Any, out: Any, bits: Any) -> None:
        per_byte = 8 // bits
        mask = np.uint8((1 << bits) - 1)
        for place in range(out.size):
            byte = np.uint8(0)
            for j in range(per_byte):
                index = place * per_byte + j
                if index < values.size:
                    byte |= np.uint8((values[index] & mask) << (j * bits))
            out[place] = byte

    return pack


def packed(values: Bytes, bits: int) -> Bytes:
    """The low bits of each byte, packed.

    >>> packed(np.array([1, 2, 3], np.uint8), 4).tolist()
    [33, 3]
    """
    out = np.empty((values.size * bits + 7) // 8, np.uint8)
    _packer()(values, out, bits)
    return out
