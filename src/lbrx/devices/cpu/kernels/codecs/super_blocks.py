"""What the types with blocks of 256 in sub-blocks share: scales of sub-blocks that are coded themselves."""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.kernels.codecs.searches import fit_positive_scale, fit_scale_and_min
from lbrx.devices.cpu.simd.elements import load_byte, store_byte, store_f16
from lbrx.devices.cpu.simd.f32 import nearest_even, round_to_f16
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.lanes import spread, sum_of_squares, sums, weigh_by_importance
from lbrx.devices.cpu.simd.memory import peek_i32
from lbrx.devices.cpu.simd.vectors import clamp, lane_max, load, maximum, select, splat, store, to_i32

WEIGHTED_SEARCH = (np.float32(-0.9), np.float32(0.05), 36)


@jit
def coded_by_largest(numbers: Any, top: Any) -> Any:
    """Numbers that are not negative as levels 0 to ``top`` of one scale, which the largest of them sets."""
    zero = np.float32(0.0)
    largest = max(lane_max(maximum(numbers, splat(numbers, zero))), zero)
    factor = top / largest if largest > 0 else zero
    return clamp(nearest_even(numbers * factor), 0.0, top), largest / top


@jit
def coded_by_weight(numbers: Any, weights: Any, work: Any, top: Any, lanes: Any) -> Any:
    """The same where the numbers count by their weights. ``work`` is a buffer of three vectors."""
    numbers_at, weights_at, levels_at = work, work + 4 * lanes, work + 8 * lanes
    store(numbers_at, 0, numbers)
    store(weights_at, 0, weights)
    scale = fit_positive_scale(numbers_at, weights_at, levels_at, lanes, top)
    return load(numbers, levels_at, 0), scale


@jit
def store_levels(
    like: Any, values: Any, levels: Any, elements: Any, top: Any, scale: Any, low: Any, factor: Any, origin: Any
) -> None:
    """Levels of x = scale level - low as a tile of i32; where the scale became 0, those that the search found."""
    is_zero = scale == 0.0
    for i in range(elements):
        value = load(like, values, i)
        searched = nearest_even(factor * (value - origin))
        final = nearest_even((value + low) / scale)
        store(levels, i, to_i32(clamp(select(is_zero, searched, final), 0.0, top)))


@jit
def code_plain(
    like: Any, tiles: Any, units: Any, elements: Any, top: Any, scale_top: Any, search: Any, by_magnitude: Any
) -> Any:
    """Code the sub-blocks in ``tiles``: levels go there, d and dmin as f16 to ``units``.

    Tiles of values, weights and levels lie one after the other, 1024 bytes each. ``search`` is the first offset, the
    step and the number of steps of the search. Gives the levels of the sub-blocks' scales and minimums.
    """
    weights, levels = tiles + 1024, tiles + 2048
    first, step, tries = search
    scale, low, factor, origin = fit_scale_and_min(
        like, tiles, weights, levels, elements, top, first, step, tries, by_magnitude
    )
    scale_levels, unit = coded_by_largest(scale, scale_top)
    low_levels, low_unit = coded_by_largest(splat(like, 0.0) - low, scale_top)
    store_units_and_levels(like, tiles, units, elements, top, scale_levels, unit, low_levels, low_unit, factor, origin)
    return to_i32(scale_levels), to_i32(low_levels)


@jit
def code_weighted(like: Any, tiles: Any, units: Any, elements: Any, lanes: Any, top: Any, scale_top: Any) -> Any:
    """The same where sub-blocks count by their weights when their scales are coded."""
    weights, levels = tiles + 1024, tiles + 2048
    first, step, tries = WEIGHTED_SEARCH
    scale, low, factor, origin = fit_scale_and_min(
        like, tiles, weights, levels, elements, top, first, step, tries, False
    )
    weight_sums = sums(like, weights, elements)
    scale_levels, unit = coded_by_weight(scale, weight_sums, levels, scale_top, lanes)
    low_levels, low_unit = coded_by_weight(splat(like, 0.0) - low, weight_sums, levels, scale_top, lanes)
    store_units_and_levels(like, tiles, units, elements, top, scale_levels, unit, low_levels, low_unit, factor, origin)
    return to_i32(scale_levels), to_i32(low_levels)


@jit
def store_units_and_levels(
    like: Any,
    tiles: Any,
    units: Any,
    elements: Any,
    top: Any,
    scale_levels: Any,
    unit: Any,
    low_levels: Any,
    low_unit: Any,
    factor: Any,
    origin: Any,
) -> None:
    """Write d and dmin as f16, and the levels that fit them best."""
    store_f16(units, 0, unit)
    store_f16(units, 1, low_unit)
    scale = scale_levels * round_to_f16(splat(like, unit))
    low = low_levels * round_to_f16(splat(like, low_unit))
    store_levels(like, tiles, tiles + 2048, elements, top, scale, low, factor, origin)


@jit
def spread_weighted(
    like: Any, source: Any, importance: Any, tiles: Any, elements: Any, lanes: Any, spread_factor: Any
) -> None:
    """Values and weights of a block as tiles; the weights grow with the mean square, times a factor, of the block."""
    spread(source, tiles, elements, lanes)
    spread(importance, tiles + 1024, elements, lanes)
    mean_square = spread_factor * sum_of_squares(source, 256) / np.float32(256.0)
    weigh_by_importance(like, tiles, tiles + 1024, elements, mean_square)


@jit
def pack_six_bit_pairs(target: Any, scales: Any, lows: Any) -> None:
    """Eight scales and eight minimums of six bits in 12 bytes, from two tiles of i32.

    Bytes 0-3: scales 0-3, and above them the high bits of scales 4-7. Bytes 4-7: the same of the minimums.
    Bytes 8-11: the low four bits of scales 4-7 below those of minimums 4-7.
    """
    for j in range(4):
        scale, low = peek_i32(scales, j + 4), peek_i32(lows, j + 4)
        store_byte(target, j, np.uint8(peek_i32(scales, j) | ((scale >> 4) << 6)))
        store_byte(target, j + 4, np.uint8(peek_i32(lows, j) | ((low >> 4) << 6)))
        store_byte(target, j + 8, np.uint8((scale & 15) | ((low & 15) << 4)))


@jit
def six_bit_pair(packed: Any, number: Any) -> Any:
    """Scale and minimum with this number of those that `pack_six_bit_pairs` wrote."""
    if number < 4:
        return load_byte(packed, number) & 63, load_byte(packed, number + 4) & 63
    both = load_byte(packed, number + 4)
    scale = (both & 15) | ((load_byte(packed, number - 4) >> 6) << 4)
    return scale, (both >> 4) | ((load_byte(packed, number) >> 6) << 4)


@jit
def pack_two_bits(levels: Any, target: Any) -> None:
    """The low two bits of 256 levels in 64 bytes, from a tile of 16 lanes: four elements 32 apart share a byte."""
    for half in range(2):
        for i in range(32):
            byte = 0
            for k in range(4):
                element = 128 * half + 32 * k + i
                byte |= (peek_i32(levels, 16 * (element % 16) + element // 16) & 3) << (2 * k)
            store_byte(target, 32 * half + i, np.uint8(byte))
