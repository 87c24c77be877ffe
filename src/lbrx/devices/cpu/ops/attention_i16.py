"""Attention of many queries in bf16 with products of i16, on processors where they are faster than those of f32."""

from __future__ import annotations

import math
from itertools import accumulate
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

from lbrx.devices.cpu.build.native import MULTIPLIES_PAIRS, address, bits, run
from lbrx.engine.arrays import Floats
from lbrx.memory.scratch import borrowing

PANEL = 16
_BLOCK_KEYS, _PAIRS = 256, 16
_MOST_SIZE = 512
_LOG2_E = math.log2(math.e)
_BF16 = np.dtype(ml_dtypes.bfloat16)
Array = npt.NDArray[Any]
Places = npt.NDArray[np.int32]


def can_use_attention_i16(q: Array, k: Array, v: Array) -> bool:
    """Whether all inputs are of the kind that is faster here."""
    sizes = max(q.shape[2], v.shape[2])
    return MULTIPLIES_PAIRS and sizes <= _MOST_SIZE and all(values.dtype == _BF16 for values in (q, k, v))


class Sight(NamedTuple):
    """What queries see: ``starts`` and ``stops`` have the first and one past the last key of each, in whole panels.

    Heads of a position are neighbours. All keys that are seen lie within ``first`` to ``stop`` - 1.
    """

    starts: Places
    stops: Places
    first: int
    stop: int


def sight(starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]) -> Sight:
    first, last = (np.ascontiguousarray(ends, np.int32) for ends in (starts, stops))
    return Sight(first, last, int(first.min()), int(last.max()))


def attention_i16(
    queries: Array, scale: float, seen: Sight, keys: Array, values: Array, softcap: float, out: Floats
) -> bool:
    """What queries [heads, positions, size] gather from one head of keys and values.

    Returns False, with nothing written, if a number is not finite.
    """
    heads, positions, size = queries.shape
    value_size, padded = values.shape[1], -(-size // 32) * 32
    padded_values, rows = -(-value_size // PANEL) * PANEL, seen.starts.size
    is_not_finite = np.zeros(1, np.float32)
    with borrowing() as borrow:
        coded = 2 * padded * rows, 4 * rows, 2 * _BLOCK_KEYS * padded, 2 * _BLOCK_KEYS * padded_values
        lengths = *coded, 8 * rows, 4 * rows * padded_values
        start = address(borrow(sum(lengths)))
        codes, scales, coded_keys, coded_values, state, gathered = accumulate(lengths[:-1], initial=start)
        numbers = (
            *(address(queries), *queries.strides[:2], heads, size, padded, bits(scale * _LOG2_E)),
            *(codes, scales, address(seen.starts), address(seen.stops)),
            *(address(keys), keys.strides[0], address(values), values.strides[0], value_size),
            *(bits(softcap), coded_keys, coded_values, state, gathered, address(is_not_finite)),
            *(_PAIRS, address(out), out.strides[0]),
        )
        job = np.array(numbers, np.int64)
        run("attention_i16", "attend", address(job), heads * positions, seen.first, seen.stop)
    return not is_not_finite[0]
