"""Attention of many queries in bf16 with products of i16, on processors where they are faster than those of f32."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from lbrx.compute.native import MULTIPLIES_PAIRS, Floats, address, bits, run
from lbrx.memory.scratch import borrowing

PANEL = 16
_BLOCK_KEYS, _PAIRS = 256, 16
_MOST_SIZE = 512
_BF16 = np.dtype(ml_dtypes.bfloat16)
Array = npt.NDArray[Any]
Places = npt.NDArray[np.int32]


def can_attend(q: Array, k: Array, v: Array) -> bool:
    """Whether all inputs are of the kind that is faster here."""
    sizes = max(q.shape[2], v.shape[2])
    return MULTIPLIES_PAIRS and sizes <= _MOST_SIZE and all(values.dtype == _BF16 for values in (q, k, v))


def attend(
    queries: Array, scale: float, starts: Places, stops: Places, keys: Array, values: Array, softcap: float, out: Floats
) -> bool:
    """What queries [heads, positions, size] gather from one head of keys and values.

    Heads of a position are neighbours in ``starts`` and ``stops``, the first and one past the last key that each query
    sees, which come in whole panels. Returns False, with nothing written, if a number is not finite.
    """
    heads, positions, size = queries.shape
    value_size, padded = values.shape[1], -(-size // 32) * 32
    padded_values, panels = -(-value_size // PANEL) * PANEL, starts.size // PANEL
    is_not_finite = np.zeros(1, np.float32)
    state = np.zeros((panels, 2, PANEL), np.float32)
    state[:, 0] = -1e30
    with borrowing() as borrow:
        codes, scales = (address(borrow(length * starts.size)) for length in (2 * padded, 4))
        coded_keys, coded_values = (address(borrow(2 * _BLOCK_KEYS * length)) for length in (padded, padded_values))
        gathered = borrow(4 * starts.size * padded_values)
        gathered[:] = 0
        numbers = [
            *(address(queries), *queries.strides[:2], heads, size, padded, bits(scale * math.log2(math.e))),
            *(codes, scales, address(starts), address(stops)),
            *(address(keys), keys.strides[0], address(values), values.strides[0], value_size),
            *(bits(softcap), coded_keys, coded_values, address(state), address(gathered), address(is_not_finite)),
            *(_PAIRS, address(out), out.strides[0]),
        ]
        job = np.array(numbers, np.int64)
        run("attending_words", "attend", address(job), heads * positions, int(starts.min()), int(stops.max()))
    return not is_not_finite[0]
