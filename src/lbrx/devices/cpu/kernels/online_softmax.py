"""What attention does between its two products: scores to weights, in place, with running maxima and sums.

A tile has a row of scores for every query. Its stride is a multiple of 16, and what lies beyond its columns is
overwritten.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.simd.elements import load_i32
from lbrx.devices.cpu.simd.f32 import exp_up_to_zero, tanh
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.memory import peek_f32, poke_f32
from lbrx.devices.cpu.simd.scalars import f32_from_bits
from lbrx.devices.cpu.simd.vectors import f32x8, f32x16, lane, lane_max, lane_sum, load, maximum, splat, store

NOTHING = np.float32(-np.inf)


@jit
def _cap(row: Any, vectors: Any, cap: Any) -> None:
    like = f32x16(0.0)
    for i in range(vectors):
        store(row, i, tanh(load(like, row, i) / cap) * cap)


@jit
def _mask(row: Any, first: Any, stop: Any, columns: Any) -> None:
    """Minus infinity outside ``first`` to ``stop``."""
    for i in range(first):
        poke_f32(row, i, NOTHING)
    for i in range(stop, columns):
        poke_f32(row, i, NOTHING)


@jit
def _weigh(row: Any, vectors: Any, before: Any) -> Any:
    """Scores to exp(score - largest): the largest so far and the sum of this tile."""
    like = f32x16(0.0)
    highest = splat(like, before)
    for i in range(vectors):
        highest = maximum(load(like, row, i), highest)
    largest = lane_max(highest)
    total = splat(like, np.float32(0.0))
    for i in range(vectors):
        value = exp_up_to_zero(load(like, row, i) - largest)
        store(row, i, value)
        total = total + value
    return largest, lane_sum(total)


def weigh(scores: int, rows: int, columns: int, stride: int, ranges: int, state: int, cap_bits: int) -> None:
    """Turn a tile of scores into weights. ``ranges`` has the first and one past the last column that a row may see,
    as i32; ``state`` three f32 for each row: the largest score, the sum, and the factor for what was summed before.
    A cap of 0 is none.
    """
    cap = f32_from_bits(cap_bits)
    vectors = (columns + 15) // 16
    for number in range(rows):
        row, own = scores + 4 * stride * number, state + 12 * number
        first, stop = load_i32(ranges, 2 * number), load_i32(ranges, 2 * number + 1)
        if first >= stop:
            for i in range(columns):
                poke_f32(row, i, np.float32(0.0))
            poke_f32(own, 2, np.float32(1.0))
            continue
        before, total = peek_f32(own, 0), peek_f32(own, 1)
        if cap > 0:
            _cap(row, vectors, cap)
        _mask(row, first, stop, 16 * vectors)
        largest, added = _weigh(row, vectors, before)
        factor = np.float32(0.0) if before == NOTHING else lane(exp_up_to_zero(f32x8(before - largest)), 0)
        poke_f32(own, 0, largest)
        poke_f32(own, 1, total * factor + added)
        poke_f32(own, 2, factor)


def accumulate(total: int, added: int, state: int, rows: int, columns: int) -> None:
    """total = total factor + added"""
    like = f32x8(0.0)
    for row in range(rows):
        factor = peek_f32(state + 12 * row, 2)
        out, term = total + 4 * columns * row, added + 4 * columns * row
        for i in range(columns // 8):
            store(out, i, load(like, out, i) * factor + load(like, term, i))
        for i in range(columns // 8 * 8, columns):
            poke_f32(out, i, peek_f32(out, i) * factor + peek_f32(term, i))


def finish(total: int, state: int, rows: int, columns: int) -> None:
    """What was accumulated, divided by the sums of the weights; zeros where a query saw no key."""
    like = f32x8(0.0)
    for row in range(rows):
        weights = peek_f32(state + 12 * row, 1)
        factor = np.float32(0.0) if weights == 0 else np.float32(1.0) / weights
        values = total + 4 * columns * row
        for i in range(columns // 8):
            store(values, i, load(like, values, i) * factor)
        for i in range(columns // 8 * 8, columns):
            poke_f32(values, i, peek_f32(values, i) * factor)
