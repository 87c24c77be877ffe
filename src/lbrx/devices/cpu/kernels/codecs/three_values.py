"""What the IQ1 encoders share: three values and a shift, with the boundaries between them searched exhaustively.

With the values of a sub-block in rising order, two boundaries split them into those that become -1, 0 and 1, plus a
shift of 1/8 up or down. Sums over a part of the order are differences of running sums. Candidates, their order and
the arithmetic are those of ggml's code built without fused multiply-add.

Tiles lie one after the other, 1024 bytes each: values, weights, ranks (i32), levels (f32). Behind them, at byte 4096,
are running sums, of which there is one more than elements.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.kernels.codecs.codebook import DELTA
from lbrx.devices.cpu.kernels.codecs.grid_search import nearest_entry, put_levels, row_of
from lbrx.devices.cpu.simd.f32 import absolute, square_root
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.lanes import spread, sum_of_squares
from lbrx.devices.cpu.simd.memory import peek_f32, peek_i32, poke_f32, poke_i32
from lbrx.devices.cpu.simd.vectors import load, maximum, select, splat, store, to_i32

GROUP, RADIX = 8, np.float32(3.0)
ROWS = 3**8  # of the table of neighbours
UP = (DELTA - np.float32(1.0), DELTA, DELTA + np.float32(1.0))
DOWN = (-np.float32(1.0) - DELTA, -DELTA, np.float32(1.0) - DELTA)
LOWEST = np.float32(-3.4028234663852886e38)
SMALLEST_WORD = 8 + 2 * GROUP  # words of a record


@jit
def weigh(like: Any, source: Any, importance: Any, tiles: Any, elements: Any, lanes: Any) -> Any:
    """Values and weights as tiles; gives the largest magnitudes. Without importances (0), weights are squares."""
    spread(source, tiles, elements, lanes)
    mean_square = np.float32(2.0) * sum_of_squares(source, 256) / np.float32(256.0)
    if importance:
        spread(importance, tiles + 1024, elements, lanes)
    largest = splat(like, 0.0)
    for i in range(elements):
        value = load(like, tiles, i)
        weight = value * value
        if importance:
            weight = load(like, tiles + 1024, i) * square_root(value * value + mean_square)
        store(tiles + 1024, i, weight)
        largest = maximum(absolute(value), largest)
    return largest


@jit
def rank(like: Any, tiles: Any, elements: Any) -> None:
    """The place of each value in rising order; equal values keep their order."""
    one = to_i32(splat(like, 1.0))
    none = one - one
    for i in range(elements):
        value, place = load(like, tiles, i), none
        for j in range(elements):
            other = load(like, tiles, j)
            is_before = other <= value if j < i else other < value
            place = place + select(is_before, one, none)
        store(tiles + 2048, i, place)


@jit
def put_running_sums(tiles: Any, sums: Any, elements: Any, lanes: Any, first: Any, stop: Any, step: Any) -> None:
    """Running sums, in rising order, of weight times value, and ``step`` bytes behind them of weights.

    Of the elements from ``first`` to ``stop``; the others count as nothing.
    """
    for own in range(lanes):
        for i in range(elements):
            place = np.int64(peek_i32(tiles + 2048, i * lanes + own))
            is_inside = first <= i < stop
            weight = peek_f32(tiles + 1024, i * lanes + own)
            product = weight * peek_f32(tiles, i * lanes + own)
            poke_f32(sums, (place + 1) * lanes + own, product if is_inside else np.float32(0.0))
            poke_f32(sums + step, (place + 1) * lanes + own, weight if is_inside else np.float32(0.0))
        poke_f32(sums, own, np.float32(0.0))
        poke_f32(sums + step, own, np.float32(0.0))
        for i in range(elements):
            for at in (sums, sums + step):
                poke_f32(at, (i + 1) * lanes + own, peek_f32(at, i * lanes + own) + peek_f32(at, (i + 1) * lanes + own))


@jit
def put_split_levels(like: Any, tiles: Any, elements: Any, low: Any, high: Any, is_mirrored: Any) -> None:
    """Levels 0, 1 and 2 of values whose ranks are below ``low``, below ``high``, and above; or the reverse."""
    zero, one, two = splat(like, 0.0), splat(like, 1.0), splat(like, 2.0)
    for i in range(elements):
        place = load(low, tiles + 2048, i)
        level = select(place < low, zero, select(place < high, one, two))
        store(tiles + 3072, i, select(is_mirrored, two - level, level))


@jit
def snap_three(
    like: Any, tiles: Any, numbers: Any, elements: Any, lanes: Any, scale: Any, is_up: Any, table: Any, own: Any
) -> Any:
    """Move the groups of a sub-block to entries, whose numbers go to a group tile; whether one was moved.

    ``is_up`` has a bit for each group, whether its shift is up.
    """
    moved = False
    records = table + 8 * ROWS
    for part in range(elements // GROUP):
        first = GROUP * part * lanes + own
        count, start = row_of(table, np.int64(peek_i32(numbers, part * lanes + own)))
        entry = start
        if count:
            shift = DELTA if (is_up >> part) & 1 else -DELTA
            record, place = nearest_entry(
                records + 4 * SMALLEST_WORD * start, count, GROUP, tiles, tiles + 1024, first, lanes, scale, shift
            )
            put_levels(record, place, GROUP, tiles + 3072, first, lanes, -1)
            entry = np.int64(peek_i32(record, place))
            moved = True
        poke_i32(numbers, part * lanes + own, np.int32(entry))
    return moved


@jit
def shifted_scale(tiles: Any, elements: Any, lanes: Any, is_up: Any, own: Any, scale: Any) -> Any:
    """The best scale of a sub-block for its levels, or ``scale`` if there is none."""
    product_sum, square_sum = np.float32(0.0), np.float32(0.0)
    for i in range(elements):
        at = i * lanes + own
        shift = DELTA if (is_up >> (i // GROUP)) & 1 else -DELTA
        weight, number = peek_f32(tiles + 1024, at), peek_f32(tiles + 3072, at) - np.float32(1.0) + shift
        product_sum += weight * number * peek_f32(tiles, at)
        square_sum += weight * number * number
    return product_sum / square_sum if product_sum > 0 and square_sum > 0 else scale
