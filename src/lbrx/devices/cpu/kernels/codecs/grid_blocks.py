"""What the IQ2 and IQ3 encoders share: weights, magnitudes and signs of sub-blocks, and the scales of a block.

The tiles of a block lie one after the other (see `fit_on_grid`); signs are a group tile at byte 6144.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.kernels.codecs.grid_search import row_of, store_numbers
from lbrx.devices.cpu.simd.elements import store_byte
from lbrx.devices.cpu.simd.f32 import nearest_even, square_root
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.lanes import spread, sum_of_squares
from lbrx.devices.cpu.simd.memory import peek_i32, poke_i32
from lbrx.devices.cpu.simd.vectors import clamp, lane_max, load, maximum, select, splat, store, to_i32

TILES_BYTES = 6144 + 512 + 64  # tiles, signs, then the levels of scales
SCALE_TOP = np.float32(15.0)


@jit
def weigh(
    like: Any, source: Any, importance: Any, tiles: Any, elements: Any, lanes: Any, spread_factor: Any, share: Any
) -> None:
    """Values, weights and the roots of weights as tiles.

    Without importances (an address of 0), a weight is the square of the value plus ``share`` of the mean square.
    """
    spread(source, tiles, elements, lanes)
    mean_square = spread_factor * sum_of_squares(source, 256) / np.float32(256.0)
    if importance:
        spread(importance, tiles + 1024, elements, lanes)
    for i in range(elements):
        value = load(like, tiles, i)
        if importance:
            weight = load(like, tiles + 1024, i) * square_root(value * value + mean_square)
        else:
            weight = value * value + share * mean_square
        store(tiles + 1024, i, weight)
        store(tiles + 3072, i, square_root(weight))


@jit
def split_signs(like: Any, tiles: Any, elements: Any, is_even: Any) -> Any:
    """Replace values by magnitudes, and keep eight signs for each group of eight; gives the largest magnitudes.

    With ``is_even``, the number of negative signs is made even: of the value that matters least, the sign is turned.
    """
    zero = splat(like, 0.0)
    none, one = to_i32(zero), to_i32(splat(like, 1.0))
    largest = zero - np.float32(3.4028234663852886e38)
    for part in range(elements // 8):
        negative, least, least_place = none, zero, none
        for i in range(8):
            value = load(like, tiles, 8 * part + i)
            negative = negative + select(value >= 0.0, none, one)
            cost = load(like, tiles + 1024, 8 * part + i) * value * value
            is_less = cost < least
            least = cost if i == 0 else select(is_less, cost, least)
            least_place = none if i == 0 else select(is_less, splat(none, np.int32(i)), least_place)
        signs = none
        for i in range(8):
            value = load(like, tiles, 8 * part + i)
            is_positive = value >= 0.0
            magnitude, sign = select(is_positive, value, zero - value), select(is_positive, none, one)
            if is_even:
                is_turned = ((negative & one) == one) & (least_place == splat(none, np.int32(i)))
                magnitude = select(is_turned, zero - magnitude, magnitude)
                sign = select(is_turned, one - sign, sign)
            store(tiles, 8 * part + i, magnitude)
            signs = signs + (sign << np.int32(i))
            largest = maximum(magnitude, largest)
        store(tiles + 6144, part, signs)
    return largest


@jit
def code_scales(like: Any, tiles: Any, elements: Any, scale: Any, is_used: Any) -> Any:
    """Make all scales positive and code them: levels of four bits are left behind the signs.

    Gives the unit, by 31 of which the largest scale is; 0 for a block without values that count. A level l is the
    scale (2 l + 1) units.
    """
    zero = splat(like, 0.0)
    is_negative = scale < 0.0
    none = to_i32(zero)
    for part in range(elements // 8):
        signs = load(none, tiles + 6144, part)
        signs = select(is_negative, splat(none, np.int32(255)) - signs, signs)
        store(tiles + 6144, part, select(is_used, signs, none))
    scale = select(is_negative, zero - scale, scale)
    largest = max(lane_max(maximum(scale, zero)), np.float32(0.0))
    unit = largest / np.float32(31.0)
    factor = np.float32(1.0) / unit if unit > 0 else np.float32(0.0)
    levels = nearest_even((scale * factor - np.float32(1.0)) * np.float32(0.5))
    store(tiles + 6656, 0, to_i32(clamp(levels, 0.0, SCALE_TOP)))
    return unit


@jit
def store_entries(like: Any, tiles: Any, elements: Any, lanes: Any, group: Any, radix: Any, table: Any) -> None:
    """The entries that the levels of all groups are, as a group tile at byte 5120."""
    store_numbers(like, tiles + 4096, tiles + 5120, elements, group, radix)
    for number in range(lanes * elements // group):
        records, entry = row_of(table, np.int64(peek_i32(tiles + 5120, number)))
        poke_i32(tiles + 5120, number, np.int32(entry if records == 0 else 0))


@jit
def clear(target: Any, nbytes: Any) -> None:
    for number in range(nbytes):
        store_byte(target, number, np.uint8(0))


@jit
def set_zero(like: Any, tile: Any, elements: Any) -> None:
    for i in range(elements):
        store(tile, i, splat(like, 0.0))


@jit
def columns_of(importance: Any, block: Any, blocks_per_row: Any) -> Any:
    """The address of the importances of a block, or 0."""
    return importance + 1024 * (block % blocks_per_row) if importance else importance
