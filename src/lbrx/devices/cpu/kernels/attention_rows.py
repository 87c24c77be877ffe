"""Attention of a few queries: keys and values are read where they are, in blocks that queries of a head share.

A task for a team. ``job`` is the address of int64 numbers: the queries and the bytes between heads and between rows of
them; the same of the results; queries of a head; query heads that share a head of keys; elements of a query and of a
value; the addresses of ``place`` and ``state``; the window, or the negated size of chunks, or 0; 1 for causal; the bits
of the scale and of the soft cap; the address of the sinks, one number for each head, or 0. ``place`` has the address of
the keys and the bytes between their heads, the same of the values, and the bytes between rows of keys and of values.
``state`` has the position of the first query and the number of keys.
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
from lbrx.devices.cpu.simd.memory import peek_f32, peek_i64, poke_f32, poke_i64, stack_bytes
from lbrx.devices.cpu.simd.scalars import f32_from_bits
from lbrx.devices.cpu.simd.vectors import (
    f32x8,
    f32x16,
    lane,
    lane_max,
    lane_sum,
    load,
    maximum,
    splat,
    store,
    store_lane_sums,
)

BLOCK = 128  # keys
MEMBERS = 16  # queries of a head of keys that are computed side by side
QUERY, OUT, LOW, HIGH, FLOATS, STATE_WORDS = 0, 1, 2, 3, 4, 6  # of a query, as int64
LARGEST, TOTAL, FACTOR = 0, 1, 2  # its floats
NOTHING, ZERO, ONE = np.float32(-np.inf), np.float32(0.0), np.float32(1.0)


@jit
def _weigh(scores: Any, count: Any, cap: Any, state: Any) -> None:
    """Scores to weights, in place. Updates the largest score, the sum of weights, and the factor for earlier sums."""
    like = f32x16(0.0)
    vectors = (count + 15) // 16
    if cap > 0:
        for i in range(count, 16 * vectors):
            poke_f32(scores, i, ZERO)
        for i in range(vectors):
            store(scores, i, tanh(load(like, scores, i) / cap) * cap)
    for i in range(count, 16 * vectors):
        poke_f32(scores, i, NOTHING)
    before = peek_f32(state, LARGEST)
    highest = splat(like, before)
    for i in range(vectors):
        highest = maximum(load(like, scores, i), highest)
    largest = lane_max(highest)
    total = like
    for i in range(vectors):
        weights = exp_up_to_zero(load(like, scores, i) - largest)
        store(scores, i, weights)
        total = total + weights
    factor = ZERO if before == NOTHING else lane(exp_up_to_zero(f32x8(before - largest)), 0)
    poke_f32(state, LARGEST, largest)
    poke_f32(state, TOTAL, peek_f32(state, TOTAL) * factor + lane_sum(total))
    poke_f32(state, FACTOR, factor)


@jit
def set_up(job: Any, unit: Any, state: Any) -> Any:
    """Begin a query: its addresses and range of keys. Returns the range."""
    queries = number(job, 6)
    head, row = unit // queries, unit % queries
    position = number(number(job, 11), 0) + row
    low, high, window = 0, number(number(job, 11), 1), number(job, 12)
    if number(job, 13) != 0:
        high = min(high, position + 1)
    if window > 0:
        low, high = max(position - window + 1, 0), min(high, position + window)
    if window < 0:
        low = position // -window * -window
    out = number(job, 3) + number(job, 4) * head + number(job, 5) * row
    poke_i64(state, QUERY, number(job, 0) + number(job, 1) * head + number(job, 2) * row)
    poke_i64(state, OUT, out)
    poke_i64(state, LOW, low)
    poke_i64(state, HIGH, high)
    poke_f32(state + 8 * FLOATS, LARGEST, NOTHING)
    poke_f32(state + 8 * FLOATS, TOTAL, ZERO)
    if number(job, 16) != 0:
        poke_f32(state + 8 * FLOATS, LARGEST, peek_f32(number(job, 16), head))
        poke_f32(state + 8 * FLOATS, TOTAL, ONE)
    for i in range(number(job, 9)):
        poke_f32(out, i, ZERO)
    return low, high


def _make_attend(load_keys: Any, load_key: Any, load_values: Any, load_value: Any) -> Any:
    @jit
    def score(query: Any, size: Any, keys: Any, row_bytes: Any, count: Any, scale: Any, scores: Any) -> None:
        """Scores of keys, four at a time; the last ones may be computed twice."""
        like = f32x16(0.0)
        for start in range(0, count, 4):
            first = max(min(start, count - 4), 0)
            a, b, c, d = like, like, like, like
            row = keys + row_bytes * first
            second = row + row_bytes * min(1, count - 1)
            third, fourth = row + row_bytes * min(2, count - 1), row + row_bytes * min(3, count - 1)
            for i in range(size // 16):
                part = load(like, query, i)
                a = fused(part, load_keys(like, row, i), a)
                b = fused(part, load_keys(like, second, i), b)
                c = fused(part, load_keys(like, third, i), c)
                d = fused(part, load_keys(like, fourth, i), d)
            store_lane_sums(scores + 4 * first, a, b, c, d)
            for key in range(first, min(first + 4, count)):
                total = peek_f32(scores, key)
                for i in range(size // 16 * 16, size):
                    total += load_f32(query, i) * load_key(keys + row_bytes * key, i)
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
    def attend_together(job: Any, unit: Any, members: Any) -> None:
        """Some queries of one head of keys: a block of keys, and then of values, stays in L1 for all of them."""
        scores, state = stack_bytes(8192), stack_bytes(768)
        queries, place = number(job, 6), number(job, 10)
        key_bytes, value_bytes = number(place, 4), number(place, 5)
        head = unit // queries // number(job, 7)
        keys, values = number(place, 0) + number(place, 1) * head, number(place, 2) + number(place, 3) * head
        scale, cap = f32_from_bits(number(job, 14)), f32_from_bits(number(job, 15))
        first, last = number(number(job, 11), 1), 0
        for member in range(members):
            low, high = set_up(job, unit + member, state + 8 * STATE_WORDS * member)
            first, last = min(first, low), max(last, high)
        for start in range(first // BLOCK * BLOCK, last, BLOCK):
            for member in range(members):
                own, own_scores = state + 8 * STATE_WORDS * member, scores + 4 * BLOCK * member
                low, high = max(peek_i64(own, LOW), start), min(peek_i64(own, HIGH), start + BLOCK)
                if low < high:
                    row = keys + key_bytes * low
                    score(peek_i64(own, QUERY), number(job, 8), row, key_bytes, high - low, scale, own_scores)
                    _weigh(own_scores, high - low, cap, own + 8 * FLOATS)
            for member in range(members):
                own, own_scores = state + 8 * STATE_WORDS * member, scores + 4 * BLOCK * member
                low, high = max(peek_i64(own, LOW), start), min(peek_i64(own, HIGH), start + BLOCK)
                if low < high:
                    factor, row = peek_f32(own + 8 * FLOATS, FACTOR), values + value_bytes * low
                    sum_up(own_scores, high - low, row, value_bytes, number(job, 9), factor, peek_i64(own, OUT))
        for member in range(members):
            own = state + 8 * STATE_WORDS * member
            total, out = peek_f32(own + 8 * FLOATS, TOTAL), peek_i64(own, OUT)
            factor = ZERO if total == 0 else ONE / total
            for i in range(number(job, 9)):
                poke_f32(out, i, peek_f32(out, i) * factor)

    def attend(job: int, _second: int, first: int, stop: int) -> None:
        """Queries ``first`` to ``stop`` - 1, counted through all heads."""
        of_one_head = number(job, 6) * number(job, 7)
        unit = first
        while unit < stop:
            members = min(stop - unit, of_one_head - unit % of_one_head, MEMBERS)
            attend_together(job, unit, members)
            unit += members

    return attend


_F32, _F16, _BF16 = (load, load_f32), (load_f16, load_one_f16), (load_bf16, load_one_bf16)
f32_f32, f32_f16, f32_bf16 = _make_attend(*_F32, *_F32), _make_attend(*_F32, *_F16), _make_attend(*_F32, *_BF16)
f16_f32, f16_f16, f16_bf16 = _make_attend(*_F16, *_F32), _make_attend(*_F16, *_F16), _make_attend(*_F16, *_BF16)
bf16_f32, bf16_f16, bf16_bf16 = _make_attend(*_BF16, *_F32), _make_attend(*_BF16, *_F16), _make_attend(*_BF16, *_BF16)
