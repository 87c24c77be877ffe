"""Attention of many queries to one head of keys in bf16, with products of i16.

Queries stand side by side, sixteen in a panel, and so do their scores, weights and sums: nothing is ever added across
lanes. Keys and values are taken 256 at a time and coded; scores are made for 64 of them. Queries and keys have a scale
of their own, elements of values one for a block, and weights one for 64 keys: the largest of them is coded as 8191.
Whole numbers are summed over no more than 64 products of at most 8191 and 4095, and so fit into i32.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.kernels.attention_codes import (
    BLOCK,
    PANEL,
    VALUE_FOUR_BYTES,
    code_keys,
    code_queries,
    code_values,
)
from lbrx.devices.cpu.kernels.gemm_i16_tile import FOURS, add_pair, four_sums
from lbrx.devices.cpu.simd.elements import load_i32
from lbrx.devices.cpu.simd.elements import load_i64 as number
from lbrx.devices.cpu.simd.f32 import ROUNDER, ROUNDER_BITS, fused, tanh
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.memory import peek_f32, poke_f32, stack_bytes
from lbrx.devices.cpu.simd.scalars import f32_from_bits
from lbrx.devices.cpu.simd.vectors import (
    bits_of,
    f32x8,
    f32x16,
    floats_of,
    load,
    maximum,
    select,
    splat,
    store,
    to_f32,
    to_i32,
)

GROUP = 64
PARTS = 2 // FOURS  # in which a panel of scores is weighed: vectors with the lanes of a register
ZERO, ONE = np.float32(0.0), np.float32(1.0)
UNSEEN, LOWEST = np.float32(-3e38), np.float32(-1e30)
NOT_FINITE = 0x7F80  # the bits of infinity in bf16; those of NaN are above
CODE_ROUNDER = np.float32(ROUNDER + 127 + 13)  # the bias of exponents, and 13: 8192 is 2**13
LOWEST_POWER, LN_2 = np.float32(-126.0), np.float32(np.log(2))
POWER_0, POWER_1 = np.float32(0.9999280572), np.float32(0.6932610273)
POWER_2, POWER_3 = np.float32(0.2426111102), np.float32(0.0551715456)


@jit
def _four_rows(codes: Any, x: Any, blocks: Any, pairs: Any) -> Any:
    """Four rows of i16 codes times a panel: their sums."""
    sums = four_sums()
    for _block in range(blocks):
        for pair in range(pairs):
            sums = add_pair(codes + 4 * pair, x + 64 * pair, sums)
        codes += 256
        x += 1024
    return sums


@jit
def _eight_rows(codes: Any, next_four: Any, x: Any, blocks: Any, pairs: Any) -> Any:
    """The same of eight, of which the last four lie behind the others."""
    sums, more = four_sums(), four_sums()
    for _block in range(blocks):
        for pair in range(pairs):
            sums = add_pair(codes + 4 * pair, x + 64 * pair, sums)
            more = add_pair(codes + next_four + 4 * pair, x + 64 * pair, more)
        codes += 256
        x += 1024
    return sums, more


@jit
def _score(sums: Any, scale: Any, out: Any, index: Any, is_first: Any) -> None:
    scores = to_f32(sums) * scale
    store(out, index, scores if is_first else load(scores, out, index) + scores)


@jit
def _score_four(sums: Any, x_scale: Any, scales: Any, out: Any, four: Any, is_first: Any) -> None:
    _score(sums[0], x_scale * peek_f32(scales, 4 * four), out, 4 * four, is_first)
    _score(sums[1], x_scale * peek_f32(scales, 4 * four + 1), out, 4 * four + 1, is_first)
    _score(sums[2], x_scale * peek_f32(scales, 4 * four + 2), out, 4 * four + 2, is_first)
    _score(sums[3], x_scale * peek_f32(scales, 4 * four + 3), out, 4 * four + 3, is_first)


@jit
def _score_keys(codes: Any, scales: Any, fours: Any, padded: Any, x: Any, x_scales: Any, pairs: Any, out: Any) -> None:
    """The scores of keys, four or eight at a time, for a panel of queries; ``out`` holds whole eights."""
    x_scale = load(f32x16(0.0), x_scales, 0)
    for four in range(0, fours, FOURS):
        for first in range(0, padded // 32, 2):
            rows, numbers = codes + 8 * padded * four + 256 * first, x + 1024 * first
            blocks = min(2, padded // 32 - first)
            if FOURS == 2:
                sums, more = _eight_rows(rows, 8 * padded, numbers, blocks, pairs)
                _score_four(more, x_scale, scales, out, four + 1, first == 0)
            else:
                sums = _four_rows(rows, numbers, blocks, pairs)
            _score_four(sums, x_scale, scales, out, four, first == 0)


@jit
def _mantissa(rest: Any) -> Any:
    """2 to the power of lanes between -1/2 and 1/2, within 2**-13."""
    series = fused(rest, splat(rest, POWER_3), splat(rest, POWER_2))
    series = fused(series, rest, splat(rest, POWER_1))
    return fused(series, rest, splat(rest, POWER_0))


@jit
def _power_of_two(value: Any) -> Any:
    """2 to the power of lanes that are not above 0, within 2**-13; next to nothing below -126.

    The bits of ROUNDER vanish when they are shifted, and leave the whole part of the power for the exponent.
    """
    bounded = maximum(value, splat(value, LOWEST_POWER))
    shifted = bounded + ROUNDER
    return floats_of(bits_of(_mantissa(bounded - (shifted - ROUNDER))) + (bits_of(shifted) << 23))


@jit
def _coded(scores: Any, largest: Any) -> Any:
    """Weights as whole numbers, 8191 for the largest score, plus the bits of ROUNDER.

    CODE_ROUNDER leaves, besides the whole part of the power, what makes it the exponent of 8192 times that power.
    """
    bounded = maximum(scores - largest, splat(scores, LOWEST_POWER))
    shifted = bounded + CODE_ROUNDER
    power = floats_of(bits_of(shifted) << 23)
    return bits_of(fused(_mantissa(bounded - (shifted - CODE_ROUNDER)), power, splat(scores, ROUNDER)))


@jit
def _weigh_part(like: Any, scores: Any, keys: Any, weights: Any, state: Any, factors: Any) -> None:
    """What `_weigh` does, for as many queries as ``like`` has lanes: all sixteen, or half of them."""
    highest, other = splat(like, LOWEST), splat(like, LOWEST)
    for pair in range(keys // 2):
        highest = maximum(highest, load(like, scores, 2 * PARTS * pair))
        other = maximum(other, load(like, scores, 2 * PARTS * pair + PARTS))
    highest = maximum(highest, other)
    before = load(like, state, 0)
    largest = maximum(before, highest)
    total = to_i32(like)
    for pair in range(keys // 2):
        first = _coded(load(like, scores, 2 * PARTS * pair), highest)
        second = _coded(load(like, scores, 2 * PARTS * pair + PARTS), highest)
        total = total + (first + second)
        store(weights, PARTS * pair, (first & np.int32(0xFFFF)) | (second << 16))
    old_factor, added = _power_of_two(before - largest), _power_of_two(highest - largest)
    weighed = to_f32(total - np.int32(keys) * ROUNDER_BITS)
    store(state, 0, largest)
    store(state, PARTS, load(like, state, PARTS) * old_factor + weighed * added)
    store(factors, 0, old_factor)
    store(factors, PARTS, added)


@jit
def _weigh(scores: Any, keys: Any, weights: Any, state: Any, factors: Any) -> None:
    """Scores of up to 64 keys to coded weights. ``state`` has the largest scores and the sums of a panel; ``factors``
    gets what to multiply with: what was summed before, and then what the coded weights sum.
    """
    if PARTS == 1:
        _weigh_part(f32x16(0.0), scores, keys, weights, state, factors)
    else:
        _weigh_part(f32x8(0.0), scores, keys, weights, state, factors)
        _weigh_part(f32x8(0.0), scores + 32, keys, weights + 32, state + 32, factors + 32)


@jit
def _gather(sums: Any, scale: Any, old_factor: Any, out: Any, index: Any) -> None:
    store(out, index, fused(to_f32(sums), scale, load(scale, out, index) * old_factor))


@jit
def _gather_four(sums: Any, factor: Any, scales: Any, old_factor: Any, out: Any, four: Any) -> None:
    _gather(sums[0], factor * peek_f32(scales, 4 * four), old_factor, out, 4 * four)
    _gather(sums[1], factor * peek_f32(scales, 4 * four + 1), old_factor, out, 4 * four + 1)
    _gather(sums[2], factor * peek_f32(scales, 4 * four + 2), old_factor, out, 4 * four + 2)
    _gather(sums[3], factor * peek_f32(scales, 4 * four + 3), old_factor, out, 4 * four + 3)


@jit
def _sum_up(codes: Any, scales: Any, fours: Any, blocks: Any, weights: Any, pairs: Any, factors: Any, out: Any) -> None:
    """What a panel of queries has gathered, and values times their weights. The number of fours is even."""
    old_factor, factor = load(f32x16(0.0), factors, 0), load(f32x16(0.0), factors, 1)
    for four in range(0, fours, FOURS):
        rows = codes + VALUE_FOUR_BYTES * four
        if FOURS == 2:
            sums, more = _eight_rows(rows, VALUE_FOUR_BYTES, weights, blocks, pairs)
            _gather_four(more, factor, scales, old_factor, out, four + 1)
        else:
            sums = _four_rows(rows, weights, blocks, pairs)
        _gather_four(sums, factor, scales, old_factor, out, four)


@jit
def _cap(scores: Any, keys: Any, cap: Any) -> None:
    """Scores are logarithms to the base 2."""
    like = f32x16(0.0)
    for key in range(keys):
        store(scores, key, tanh(load(like, scores, key) * (LN_2 / cap)) * (cap / LN_2))


@jit
def _hide(scores: Any, keys: Any, first_key: Any, starts: Any, stops: Any) -> None:
    """Scores of keys that a query does not see become as low as can be."""
    like = f32x16(0.0)
    first, stop = load(to_i32(like), starts, 0), load(to_i32(like), stops, 0)
    for key in range(keys):
        index = splat(first, np.int32(first_key + key))
        seen = select(index < stop, load(like, scores, key), splat(like, UNSEEN))
        store(scores, key, select(index < first, splat(like, UNSEEN), seen))


@jit
def _look(
    job: Any, panel: Any, start: Any, group: Any, limit: Any, key_scales: Any, value_scales: Any, is_open: Any
) -> None:
    """Let a panel of queries look at the keys of a group up to ``limit``."""
    scores, weights, factors = stack_bytes(4096), stack_bytes(4096), stack_bytes(128)
    padded, value_fours = number(job, 5), (number(job, 15) + 15) // 16 * 4
    pairs, cap = number(job, 22), f32_from_bits(number(job, 16))
    keys = (limit - group + 3) // 4 * 4
    whole = (keys + 31) // 32 * 32
    codes, x, x_scales = number(job, 17) + 2 * padded * group, number(job, 7) + 32 * padded * panel, number(job, 8)
    _score_keys(codes, key_scales + 4 * group, keys // 4, padded, x, x_scales + 64 * panel, pairs, scores)
    for key in range(keys, whole):
        store(scores, key, splat(f32x16(0.0), UNSEEN))
    if cap > 0:
        _cap(scores, keys, cap)
    if not is_open:
        _hide(scores, keys, start + group, number(job, 9) + 64 * panel, number(job, 10) + 64 * panel)
    values, out = number(job, 18) + 8 * group, number(job, 20) + 256 * value_fours * panel
    state = number(job, 19) + 128 * panel
    _clear_unless_seen(state, out, 4 * value_fours)
    _weigh(scores, whole, weights, state, factors)
    _sum_up(values, value_scales, value_fours, whole // 32, weights, pairs, factors, out)


@jit
def _forget(state: Any, panels: Any) -> None:
    """No panel has looked at a key yet."""
    for panel in range(panels):
        store(state, 2 * panel, splat(f32x16(0.0), UNSEEN))
        store(state, 2 * panel + 1, f32x16(0.0))


@jit
def _clear_unless_seen(state: Any, out: Any, vectors: Any) -> None:
    """What a panel gathers begins with zeros: it has seen nothing as long as its largest score is lower than LOWEST."""
    if peek_f32(state, 0) < LOWEST:
        for vector in range(vectors):
            store(out, vector, f32x16(0.0))


@jit
def _write_out(job: Any, rows: Any) -> None:
    """What panels have gathered, divided by the sums of the weights, as rows."""
    size, group = number(job, 15), number(job, 3)
    padded = (size + 15) // 16 * 16
    for row in range(rows):
        panel, lane = row // PANEL, row % PANEL
        total = peek_f32(number(job, 19) + 128 * panel, 16 + lane)
        gathered = number(job, 20) + 64 * padded * panel + 4 * lane
        out = number(job, 23) + number(job, 24) * (row % group) + 4 * size * (row // group)
        factor = ZERO if total == 0 else ONE / total
        for i in range(size):
            poke_f32(out, i, ZERO if total == 0 else peek_f32(gathered, 16 * i) * factor)


@jit
def _group_limits(job: Any, panel: Any, start: Any, group: Any, count: Any) -> Any:
    """One past the last key of a group that a panel of queries sees, or its beginning; and whether all see all of it.

    The first and last keys that queries see rise from query to query.
    """
    starts, stops = number(job, 9) + 64 * panel, number(job, 10) + 64 * panel
    last = PANEL - 1
    limit = min(group + GROUP, min(np.int64(load_i32(stops, last)) - start, count))
    if limit <= group or group + GROUP <= np.int64(load_i32(starts, 0)) - start:
        return group, False
    sees_first = np.int64(load_i32(starts, last)) - start <= group
    return limit, sees_first and np.int64(load_i32(stops, 0)) - start >= (limit + 3) // 4 * 4


def attend(job: int, rows: int, low: int, high: int) -> None:
    """Let ``rows`` queries look at keys ``low`` to ``high`` - 1.

    ``job`` is the address of int64 numbers. Of queries: 0 where they lie, 1 and 2 strides in bytes from head to head
    and from position to position, 3 heads, 4 size, 5 the same in whole blocks of 32, 6 the bits of a factor for scores
    as logarithms to the base 2, 7 and 8 buffers for codes and scales, 9 and 10 the first and one past the last key that
    each sees, as i32 for whole panels. Of keys: 11 where they lie, 12 stride. Of values: 13 where they lie, 14 stride,
    15 size. 16 the bits of the cap; 17 and 18 buffers for 256 coded keys and values; 19 the largest scores and sums
    of panels, 20 what they gather; 21 a flag that is set if a number is not finite: then nothing is written;
    22 the number 16, from here so that loops are not unrolled; 23 out, 24 its stride from head to head.
    """
    key_scales, value_scales, buffer = stack_bytes(1024), stack_bytes(2048), stack_bytes(9216)
    size, padded = number(job, 4), number(job, 5)
    key_stride, value_stride = number(job, 12), number(job, 14)
    panels = (rows + PANEL - 1) // PANEL
    _forget(number(job, 19), panels)
    largest = code_queries(job, rows, buffer)
    for start in range(low, high, BLOCK):
        count = min(BLOCK, high - start)
        keys, values = number(job, 11) + key_stride * start, number(job, 13) + value_stride * start
        largest_key = code_keys(keys, key_stride, count, size, padded, number(job, 17), key_scales, buffer)
        largest_value = code_values(values, value_stride, count, number(job, 15), number(job, 18), value_scales, buffer)
        if max(largest, max(largest_key, largest_value)) >= NOT_FINITE:
            poke_f32(number(job, 21), 0, ONE)
            return
        for group in range(0, count, GROUP):
            for panel in range(panels):
                limit, is_open = _group_limits(job, panel, start, group, count)
                if limit > group:
                    _look(job, panel, start, group, limit, key_scales, value_scales, is_open)
    _write_out(job, rows)
