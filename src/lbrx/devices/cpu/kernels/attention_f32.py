"""Attention of many queries to one head of keys, in one piece: scores, weights and sums stay in registers and L1.

Keys and values are taken a block of 256 at a time and packed as f32 in panels of 16: keys with panels along the keys
and elements one after the other, values with panels along the elements. Queries come six at a time, so that twelve
vectors of eight are summed up side by side.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.simd.elements import load_bf16 as load_one_bf16
from lbrx.devices.cpu.simd.elements import load_f16 as load_one_f16
from lbrx.devices.cpu.simd.elements import load_f32, load_i32
from lbrx.devices.cpu.simd.f32 import exp_up_to_zero, fused, load_bf16, load_f16, tanh
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.memory import peek_f32, poke_f32, stack_bytes
from lbrx.devices.cpu.simd.scalars import f32_from_bits
from lbrx.devices.cpu.simd.vectors import f32x8, f32x16, lane, lane_max, lane_sum, load, maximum, splat, store

BLOCK = 256
ROW_BYTES = 4 * BLOCK
F16, BF16 = 1, 2
NOTHING, ZERO, ONE = np.float32(-np.inf), np.float32(0.0), np.float32(1.0)


@jit
def _element(row: Any, number: Any, dtype: Any) -> Any:
    if dtype == F16:
        return load_one_f16(row, number)
    return load_one_bf16(row, number) if dtype == BF16 else load_f32(row, number)


@jit
def _pack_keys(keys: Any, stride_bytes: Any, dtype: Any, count: Any, size: Any, packed: Any) -> None:
    """Panel p has elements of keys 16 p to 16 p + 15 side by side; keys that are missing are zeros."""
    for key in range((count + 15) // 16 * 16):
        offset = key // 16 * 16 * size + key % 16
        if key >= count:
            for i in range(size):
                poke_f32(packed, offset + 16 * i, ZERO)
            continue
        row = keys + stride_bytes * key
        for i in range(size):
            poke_f32(packed, offset + 16 * i, _element(row, i, dtype))


@jit
def _pack_values(values: Any, stride_bytes: Any, dtype: Any, count: Any, size: Any, packed: Any) -> None:
    """Panel p has elements 16 p to 16 p + 15 of every value; elements and values that are missing are zeros."""
    like = f32x16(0.0)
    for panel in range((size + 15) // 16):
        out = packed + 64 * BLOCK * panel
        is_whole = 16 * panel + 16 <= size
        for key in range((count + 15) // 16 * 16):
            row = values + stride_bytes * key
            if key >= count or not is_whole:
                store(out, key, like)
            if key < count and not is_whole:
                for i in range(16 * panel, size):
                    poke_f32(out, 16 * key + i - 16 * panel, _element(row, i, dtype))
            elif key < count and dtype == F16:
                store(out, key, load_f16(like, row, panel))
            elif key < count and dtype == BF16:
                store(out, key, load_bf16(like, row, panel))
            elif key < count:
                store(out, key, load(like, row, panel))


@jit
def _add_six(weights: Any, stride: Any, i: Any, elements: Any, sums: Any) -> Any:
    """Six sums, each plus elements times element ``i`` of its row of weights."""
    a, b, c, d, e, f = sums
    a = fused(splat(a, peek_f32(weights, i)), elements, a)
    b = fused(splat(a, peek_f32(weights, stride + i)), elements, b)
    c = fused(splat(a, peek_f32(weights, 2 * stride + i)), elements, c)
    d = fused(splat(a, peek_f32(weights, 3 * stride + i)), elements, d)
    e = fused(splat(a, peek_f32(weights, 4 * stride + i)), elements, e)
    f = fused(splat(a, peek_f32(weights, 5 * stride + i)), elements, f)
    return a, b, c, d, e, f


@jit
def _store_six(out: Any, row_bytes: Any, panel: Any, sums: Any) -> None:
    store(out, panel, sums[0])
    store(out + row_bytes, panel, sums[1])
    store(out + 2 * row_bytes, panel, sums[2])
    store(out + 3 * row_bytes, panel, sums[3])
    store(out + 4 * row_bytes, panel, sums[4])
    store(out + 5 * row_bytes, panel, sums[5])


@jit
def _score(queries: Any, size: Any, packed: Any, first_panel: Any, panels: Any, scores: Any) -> None:
    """The scores of six queries."""
    like = f32x16(0.0)
    for panel in range(first_panel, panels):
        keys = packed + 64 * size * panel
        sums = like, like, like, like, like, like
        for i in range(size):
            sums = _add_six(queries, size, i, load(like, keys, i), sums)
        _store_six(scores, ROW_BYTES, panel, sums)


@jit
def _weigh(row: Any, first_panel: Any, panels: Any, first: Any, stop: Any, cap: Any, state: Any) -> Any:
    """Scores to weights; ``state`` has the largest score and the sum. Returns the factor for what was summed before."""
    like = f32x16(0.0)
    if first >= stop:
        for panel in range(first_panel, panels):
            store(row, panel, like)
        return ONE
    if cap > 0:
        for panel in range(first_panel, panels):
            store(row, panel, tanh(load(like, row, panel) / cap) * cap)
    for i in range(16 * first_panel, first):
        poke_f32(row, i, NOTHING)
    for i in range(stop, 16 * panels):
        poke_f32(row, i, NOTHING)
    before = peek_f32(state, 0)
    highest = splat(like, before)
    for panel in range(first_panel, panels):
        highest = maximum(load(like, row, panel), highest)
    largest = lane_max(highest)
    total = splat(like, ZERO)
    for panel in range(first_panel, panels):
        weights = exp_up_to_zero(load(like, row, panel) - largest)
        store(row, panel, weights)
        total = total + weights
    factor = ZERO if before == NOTHING else lane(exp_up_to_zero(f32x8(before - largest)), 0)
    poke_f32(state, 0, largest)
    poke_f32(state, 1, peek_f32(state, 1) * factor + lane_sum(total))
    return factor


@jit
def _sum_up(
    weights: Any, first: Any, stop: Any, packed: Any, panels: Any, factors: Any, total: Any, row_bytes: Any
) -> None:
    """What six queries have gathered, times their factors, plus the values times their weights."""
    like = f32x16(0.0)
    for panel in range(panels):
        values = packed + 64 * BLOCK * panel
        sums = (
            load(like, total, panel) * peek_f32(factors, 0),
            load(like, total + row_bytes, panel) * peek_f32(factors, 1),
            load(like, total + 2 * row_bytes, panel) * peek_f32(factors, 2),
            load(like, total + 3 * row_bytes, panel) * peek_f32(factors, 3),
            load(like, total + 4 * row_bytes, panel) * peek_f32(factors, 4),
            load(like, total + 5 * row_bytes, panel) * peek_f32(factors, 5),
        )
        for key in range(first, stop):
            sums = _add_six(weights, BLOCK, key, load(like, values, key), sums)
        _store_six(total, row_bytes, panel, sums)


@jit
def _first(starts: Any, row: Any, block_start: Any) -> Any:
    """The first key of a block that a query sees."""
    return max(np.int64(load_i32(starts, row)) - block_start, 0)


@jit
def _stop(stops: Any, row: Any, block_start: Any, count: Any) -> Any:
    """One past the last key of a block that a query sees."""
    return min(np.int64(load_i32(stops, row)) - block_start, count)


def attend(
    queries: int,
    rows: int,
    size: int,
    starts: int,
    stops: int,
    keys: int,
    key_stride: int,
    key_dtype: int,
    values: int,
    value_stride: int,
    value_dtype: int,
    value_size: int,
    low: int,
    high: int,
    cap_bits: int,
    packed_keys: int,
    packed_values: int,
    state: int,
    total: int,
) -> None:
    """Let ``rows`` queries (a multiple of six) look at keys ``low`` to ``high`` - 1.

    ``starts`` and ``stops`` are the keys that each query sees, as rising i32 numbers; ``state`` has the largest score
    and the sum of each, ``total`` what they gather, in rows of whole panels. At the end it is divided by the sums.
    """
    scores, factors = stack_bytes(6144), stack_bytes(64)
    cap = f32_from_bits(cap_bits)
    value_panels = (value_size + 15) // 16
    row_bytes = 64 * value_panels
    for start in range(low, high, BLOCK):
        count = min(BLOCK, high - start)
        _pack_keys(keys + key_stride * start, key_stride, key_dtype, count, size, packed_keys)
        _pack_values(values + value_stride * start, value_stride, value_dtype, count, value_size, packed_values)
        for row in range(0, rows, 6):
            first = _first(starts, row, start)
            stop = _stop(stops, row + 5, start, count)
            if first >= stop:
                continue
            first_panel, panels = first // 16, (stop + 15) // 16
            _score(queries + 4 * size * row, size, packed_keys, first_panel, panels, scores)
            for member in range(6):
                own_first = _first(starts, row + member, start)
                own_stop = _stop(stops, row + member, start, count)
                own_state = state + 8 * (row + member)
                factor = _weigh(scores + ROW_BYTES * member, first_panel, panels, own_first, own_stop, cap, own_state)
                poke_f32(factors, member, factor)
            gathered = total + row_bytes * row
            _sum_up(scores, 16 * first_panel, 16 * panels, packed_values, value_panels, factors, gathered, row_bytes)
    for row in range(rows):
        weights = peek_f32(state, 2 * row + 1)
        factor = ZERO if weights == 0 else ONE / weights
        for panel in range(value_panels):
            gathered = load(f32x16(0.0), total + row_bytes * row, panel)
            store(total + row_bytes * row, panel, gathered * factor)
