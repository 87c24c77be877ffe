"""Searches for the scales of a block with the least loss under error feedback; see `feedback_rounding`.

A scale is only tried as it can be stored: ``unit`` says how. With a unit, it is a whole multiple from ``bounds``.
Without (``NO_UNIT``), it is any number, and with ``HALF_UNIT`` a half.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.kernels.codecs.feedback_rounding import (
    LARGEST,
    ONE,
    extremes,
    linear_loss,
    table_loss,
    whole_multiple,
)
from lbrx.devices.cpu.simd.f32 import round_to_f16
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.vectors import minimum, select, splat

HALF, FREE, MULTIPLE = 0, 1, 2  # how a scale is stored
TABLE_BOUND = np.float32(8.0)  # the table of IQ4_NL has 16 levels
MARGIN, SPAN = np.float32(1.2), np.float32(4.8)  # of scales that are tried, in steps between levels
WIDEST, LONGEST_SPAN = np.float32(1.2), np.float32(0.7)
SHRINKAGE = np.float32(1.8)  # of a range with a minimum at either end, in steps between levels


@jit
def stored_scale(scale: Any, mode: Any, unit: Any, bounds: Any) -> Any:
    """The nearest scale that can be stored."""
    if mode == HALF:
        return round_to_f16(scale)
    if mode == MULTIPLE:
        return whole_multiple(scale, unit, bounds[0], bounds[1]) * unit
    return scale


def make_symmetric_search(loss: Any, table_bound: Any) -> Any:
    """A search for scales with which the extreme value is near the lowest or the highest level.

    ``table_bound`` is half of the number of levels, or 0 if they are at equal distances.
    """

    @jit
    def search(
        like: Any,
        tile: Any,
        work: Any,
        block: Any,
        factors: Any,
        columns: Any,
        levels: Any,
        tries: Any,
        mode: Any,
        unit: Any,
        bounds: Any,
    ) -> Any:
        _, _, extreme = extremes(like, tile, block[0], block[1])
        zero = splat(like, 0.0)
        best, best_loss = zero, splat(like, LARGEST)
        bound = table_bound if table_bound != 0 else -levels[0]
        widest = min(ONE + MARGIN / bound, WIDEST)
        step = min(SPAN / bound, LONGEST_SPAN) / np.float32(tries)
        for number in range(2 * tries + 6):
            if number < 2 * tries + 2:
                edge = levels[0] if number <= tries else levels[1]
                place = number if number <= tries else number - tries - 1
                scale = extreme * ((widest - step * np.float32(place)) / edge)
            else:  # between the best one and its neighbours
                if number == 2 * tries + 2:
                    middle = best
                scale = middle * (ONE + step * np.float32((number - 2 * tries - 3.5) / 2.5))
            scale = stored_scale(scale, mode, unit, bounds)
            now = loss(like, tile, work, block, factors, columns, scale, zero, levels)
            is_better = now < best_loss
            best_loss = select(is_better, now, best_loss)
            best = select(is_better, scale, best)
        return best

    return search


symmetric_search, table_search = (
    make_symmetric_search(linear_loss, np.float32(0.0)),
    make_symmetric_search(table_loss, TABLE_BOUND),
)


@jit
def min_search(
    like: Any,
    tile: Any,
    work: Any,
    block: Any,
    factors: Any,
    columns: Any,
    levels: Any,
    tries: Any,
    mode: Any,
    unit: Any,
    low_unit: Any,
    bounds: Any,
    has_sign: Any,
) -> Any:
    """A search for a scale and a minimum: both ends of the range are moved inwards. Minimums are below 0, or any."""
    low, high, _ = extremes(like, tile, block[0], block[1])
    zero = splat(like, 0.0)
    if not has_sign:
        low = minimum(low, zero)
    width = high - low
    best, best_low, best_loss = zero, zero, splat(like, LARGEST)
    start = splat(like, -0.01)
    step = SHRINKAGE / (levels[1] * np.float32(tries))
    best_a, best_b, middle_a, middle_b = start, start, start, start
    coarse = (tries + 1) * (tries + 1)
    for number in range(coarse + 16):
        if number < coarse:
            a = start + step * np.float32(number // (tries + 1))
            b = start + step * np.float32(number % (tries + 1))
        else:  # around the best ones, with half of the step and then a quarter
            near = (number - coarse) % 8
            if near == 0:
                middle_a, middle_b, step = best_a, best_b, step * np.float32(0.5)
            near = near if near < 4 else near + 1
            a = middle_a + step * np.float32(near // 3 - 1)
            b = middle_b + step * np.float32(near % 3 - 1)
        low_now = low + width * a
        scale = (high - width * b - low_now) / levels[1]
        if not has_sign:
            low_now = minimum(low_now, zero)
        scale = stored_scale(scale, mode, unit, bounds)
        low_now = zero - stored_scale(zero - low_now, mode, low_unit, bounds)
        now = linear_loss(like, tile, work, block, factors, columns, scale, low_now, levels)
        is_better = now < best_loss
        best_loss = select(is_better, now, best_loss)
        best, best_low = select(is_better, scale, best), select(is_better, low_now, best_low)
        best_a, best_b = select(is_better, a, best_a), select(is_better, b, best_b)
    return best, best_low
