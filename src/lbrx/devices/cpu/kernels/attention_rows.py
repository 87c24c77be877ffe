"""Attention of a few queries, one after the other: keys and values are read once for each, where they are.

A task for a team. ``job`` is the address of int64 numbers: the queries and the bytes between heads and between rows of
them; the same of the results; queries of a head; query heads that share a head of keys; elements of a query and of a
value; the addresses of ``place`` and ``state``; the window or 0; 1 for causal; the bits of the scale and of the soft
cap. ``place`` has the address of the keys and the bytes between their heads, the same of the values, and the bytes
between rows of keys and of values. ``state`` has the position of the first query and the number of keys.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.simd.elements import load_bf16 as load_one_bf16
from lbrx.devices.cpu.simd.elements import load_f16 as load_one_f16
from lbrx.devices.cpu.simd.elements import load_f32
from lbrx.devices.cpu.simd.elements import load_i64 as number
from lbrx.devices.cpu.simd.f32 import exp_up_to_zero, fused, load_bf16, load_f16, tanh
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.memory import peek_f32, poke_f32, stack_bytes
from lbrx.devices.cpu.simd.scalars import f32_from_bits
from lbrx.devices.cpu.simd.vectors import f32x8, f32x16, lane, lane_max, lane_sum, load, maximum, splat, store

BLOCK = 256  # keys
NOTHING, ZERO, ONE = np.float32(-np.inf), np.float32(0.0), np.float32(1.0)


@jit
def _weigh(scores: Any, count: Any, cap: Any, before: Any) -> Any:
    """Scores to weights, in place. Returns the largest score so far and the sum of the weights."""
    like = f32x16(0.0)
    vectors = (count + 15) // 16
    for i in range(count, 16 * vectors):
        poke_f32(scores, i, ZERO)
    if cap > 0:
        for i in range(vectors):
            store(scores, i, tanh(load(like, scores, i) / cap) * cap)
    for i in range(count, 16 * vectors):
        poke_f32(scores, i, NOTHING)
    highest = splat(like, before)
    for i in range(vectors):
        highest = maximum(load(like, scores, i), highest)
    largest = lane_max(highest)
    total = like
    for i in range(vectors):
        weights = exp_up_to_zero(load(like, scores, i) - largest)
        store(scores, i, weights)
        total = total + weights
    return largest, lane_sum(total)


def _make_attend(load_keys: Any, load_key: Any, load_values: Any, load_value: Any) -> Any:
    @jit
    def score(query: Any, size: Any, keys: Any, row_bytes: Any, count: Any, scale: Any, scores: Any) -> None:
        like = f32x16(0.0)
        for key in range(count):
            row = keys + row_bytes * key
            sums = like
            for i in range(size // 16):
                sums = fused(load(like, query, i), load_keys(like, row, i), sums)
            total = lane_sum(sums)
            for i in range(size // 16 * 16, size):
                total += load_f32(query, i) * load_key(row, i)
            poke_f32(scores, key, total * scale)

    @jit
    def sum_up(weights: Any, count: Any, values: Any, row_bytes: Any, size: Any, factor: Any, out: Any) -> None:
        """``out = out factor + weights values``, 64 elements at a time."""
        like = f32x16(0.0)
        for first in range(0, size // 64 * 4, 4):
            a, b = load(like, out, first) * factor, load(like, out, first + 1) * factor
            c, d = load(like, out, first + 2) * factor, load(like, out, first + 3) * factor
            for key in range(count):
                row, weight = values + row_bytes * key, splat(like, peek_f32(weights, key))
                a = fused(weight, load_values(like, row, first), a)
                b = fused(weight, load_values(like, row, first + 1), b)
                c = fused(weight, load_values(like, row, first + 2), c)
                d = fused(weight, load_values(like, row, first + 3), d)
            store(out, first, a)
            store(out, first + 1, b)
            store(out, first + 2, c)
            store(out, first + 3, d)
        for panel in range(size // 64 * 4, size // 16):
            sums = load(like, out, panel) * factor
            for key in range(count):
                row = values + row_bytes * key
                sums = fused(splat(like, peek_f32(weights, key)), load_values(like, row, panel), sums)
            store(out, panel, sums)
        for i in range(size // 16 * 16, size):
            total = peek_f32(out, i) * factor
            for key in range(count):
                total += peek_f32(weights, key) * load_value(values + row_bytes * key, i)
            poke_f32(out, i, total)

    @jit
    def attend_one(job: Any, query: Any, position: Any, head: Any, out: Any) -> None:
        """A query of a head of keys. ``out`` has room for its result."""
        scores = stack_bytes(1024)
        size, value_size, place = number(job, 8), number(job, 9), number(job, 10)
        keys, values = number(place, 0) + number(place, 1) * head, number(place, 2) + number(place, 3) * head
        key_bytes, value_bytes = number(place, 4), number(place, 5)
        low, high, window = 0, number(number(job, 11), 1), number(job, 12)
        if number(job, 13) != 0:
            high = min(high, position + 1)
        if window > 0:
            low, high = max(position - window + 1, 0), min(high, position + window)
        scale, cap = f32_from_bits(number(job, 14)), f32_from_bits(number(job, 15))
        for i in range(value_size):
            poke_f32(out, i, ZERO)
        before, total = NOTHING, ZERO
        for start in range(low, high, BLOCK):
            count = min(BLOCK, high - start)
            score(query, size, keys + key_bytes * start, key_bytes, count, scale, scores)
            largest, added = _weigh(scores, count, cap, before)
            factor = ZERO if before == NOTHING else lane(exp_up_to_zero(f32x8(before - largest)), 0)
            sum_up(scores, count, values + value_bytes * start, value_bytes, value_size, factor, out)
            before, total = largest, total * factor + added
        factor = ZERO if total == 0 else ONE / total
        for i in range(value_size):
            poke_f32(out, i, peek_f32(out, i) * factor)

    def attend(job: int, _second: int, first: int, stop: int) -> None:
        """Queries ``first`` to ``stop`` - 1, counted through all heads."""
        queries = number(job, 6)
        for unit in range(first, stop):
            head, row = unit // queries, unit % queries
            query = number(job, 0) + number(job, 1) * head + number(job, 2) * row
            out = number(job, 3) + number(job, 4) * head + number(job, 5) * row
            attend_one(job, query, number(number(job, 11), 0) + row, head // number(job, 7), out)

    return attend


_F32, _F16, _BF16 = (load, load_f32), (load_f16, load_one_f16), (load_bf16, load_one_bf16)
f32_f32, f32_f16, f32_bf16 = _make_attend(*_F32, *_F32), _make_attend(*_F32, *_F16), _make_attend(*_F32, *_BF16)
f16_f32, f16_f16, f16_bf16 = _make_attend(*_F16, *_F32), _make_attend(*_F16, *_F16), _make_attend(*_F16, *_BF16)
bf16_f32, bf16_f16, bf16_bf16 = _make_attend(*_BF16, *_F32), _make_attend(*_BF16, *_F16), _make_attend(*_BF16, *_BF16)
