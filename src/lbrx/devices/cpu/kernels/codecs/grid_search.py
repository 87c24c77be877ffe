"""Searches on the grid of a codebook: sub-blocks side by side in lanes, and eight entries at once for a group.

They try the same candidates, in the same order and with the same arithmetic, as ggml's code built without fused
multiply-add. A tile holds 256 numbers of a block: element i of sub-block j is lane j of vector i. Groups are numbered
within a sub-block; a vector of a group tile has a number for each sub-block. `lbrx.tensors.codecs.neighbour_tables`
describes ``table``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.simd.f32 import nearest_even
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.memory import peek_f32, peek_i32, poke_f32, poke_i32
from lbrx.devices.cpu.simd.scalars import first_set_bit
from lbrx.devices.cpu.simd.vectors import (
    clamp,
    f32x8,
    lane,
    lane_min,
    load,
    load_i8,
    mask_bits,
    select,
    splat,
    store,
    to_f32,
    to_i32,
)

ENTRIES = 8  # in a record
LARGEST = np.float32(3.4028234663852886e38)


@jit
def row_of(table: Any, number: Any) -> Any:
    """How many records a group of levels has, and the first of them; or 0 and the entry that it is."""
    return np.int64(peek_i32(table, 2 * number)), np.int64(peek_i32(table, 2 * number + 1))


@jit
def nearest_entry(
    record: Any, records: Any, group: Any, values: Any, weights: Any, first: Any, lanes: Any, scale: Any, shift: Any
) -> Any:
    """The record and the place in it of the entry with the least weighted error against scale (entry + shift).

    The values of the group are every ``lanes``-th of a tile from number ``first``. The first of equal errors counts.
    """
    like = f32x8(0.0)
    words = ENTRIES + ENTRIES * group // 4
    best, best_record = f32x8(LARGEST), to_i32(f32x8(0.0))
    for number in range(records):
        entries = record + 4 * words * number + 4 * ENTRIES
        error = f32x8(0.0)
        for i in range(group):
            level = to_f32(load_i8(like, entries + ENTRIES * i)) + shift
            difference = level * scale - peek_f32(values, first + i * lanes)
            error = error + difference * peek_f32(weights, first + i * lanes) * difference
        is_better = error < best
        best = select(is_better, error, best)
        best_record = select(is_better, splat(best_record, np.int32(number)), best_record)
    left = mask_bits(best == lane_min(best))
    place = first_set_bit(left) & 7
    chosen = lane(best_record, place)
    left &= left - 1
    while left != 0:
        other = first_set_bit(left)
        if lane(best_record, other) < chosen:
            place, chosen = other, lane(best_record, other)
        left &= left - 1
    return record + 4 * words * np.int64(chosen), place


@jit
def put_levels(record: Any, place: Any, group: Any, levels: Any, first: Any, lanes: Any, lowest: Any) -> None:
    """Write the levels of an entry into a tile; in records they begin at ``lowest`` and rise by 1 or 2."""
    for i in range(group):
        word = peek_i32(record, ENTRIES + 2 * i + place // 4)
        value = ((word >> np.int32(8 * (place % 4))) & 255 ^ 128) - 128
        level = value + 1 if lowest < 0 else (value - 1) >> 1
        poke_f32(levels, first + i * lanes, np.float32(level))


@jit
def store_numbers(like: Any, levels: Any, numbers: Any, elements: Any, group: Any, radix: Any) -> None:
    """The numbers of all groups of levels, as a group tile of i32."""
    for part in range(elements // group):
        number, digit = splat(like, 0.0), np.float32(1.0)
        for i in range(group):
            number = number + load(like, levels, group * part + i) * digit
            digit = digit * radix
        store(numbers, part, to_i32(number))


@jit
def snap(
    like: Any,
    tiles: Any,
    levels: Any,
    numbers: Any,
    elements: Any,
    lanes: Any,
    group: Any,
    top: Any,
    factor: Any,
    scale: Any,
    table: Any,
    records: Any,
    wanted: Any,
) -> None:
    """Levels on the grid for value / scale, in a tile; the bits of ``wanted`` name the lanes that are needed.

    ``numbers`` is left with 1 for each group whose nearest levels are an entry, else 0. ``tiles`` holds values, and
    3072 bytes behind them the roots of weights.
    """
    values, roots = tiles, tiles + 3072
    for i in range(elements):
        level = (factor * load(like, values, i) - np.float32(1.0)) * np.float32(0.5)
        store(levels, i, clamp(nearest_even(level), 0.0, top))
    store_numbers(like, levels, numbers, elements, group, top + np.float32(1.0))
    words = ENTRIES + ENTRIES * group // 4
    left = wanted
    while left != 0:
        own = first_set_bit(left)
        left &= left - 1
        for part in range(elements // group):
            first = group * part * lanes + own
            count, start = row_of(table, np.int64(peek_i32(numbers, part * lanes + own)))
            poke_i32(numbers, part * lanes + own, np.int32(count == 0))
            if count:
                record, place = nearest_entry(
                    records + 4 * words * start,
                    count,
                    group,
                    values,
                    roots,
                    first,
                    lanes,
                    lane(scale, own),
                    np.float32(0.0),
                )
                put_levels(record, place, group, levels, first, lanes, 1)


@jit
def grid_sums(like: Any, values: Any, weights: Any, levels: Any, elements: Any) -> Any:
    """Weighted sums of value times number, and of number squared, of which level l is 2 l + 1."""
    product_sum, square_sum = splat(like, 0.0), splat(like, 0.0)
    for i in range(elements):
        weight = load(like, weights, i)
        number = load(like, levels, i) * np.float32(2.0) + np.float32(1.0)
        product_sum = product_sum + weight * load(like, values, i) * number
        square_sum = square_sum + weight * number * number
    return product_sum, square_sum


@jit
def fit_on_grid(
    like: Any,
    tiles: Any,
    elements: Any,
    lanes: Any,
    group: Any,
    top: Any,
    largest: Any,
    scale: Any,
    is_used: Any,
    tries: Any,
    step: Any,
    grid_rule: Any,
    table: Any,
    rows: Any,
) -> Any:
    """The scales of all sub-blocks; levels on the grid are left in the fifth tile (4096 bytes behind the values).

    ``tiles`` holds values, weights (1024), work (2048), roots of weights (3072), levels (4096) and two group tiles
    (5120 and 5632). The factors to try are divided by ``largest``. ``grid_rule`` says which groups are snapped once
    more with the best scale: 0 those that are not entries, 1 all if one of them is none, 2 all. ``rows`` are those of
    ``table``.
    """
    weights, trial, levels, on_grid, trial_on_grid = (
        tiles + 1024,
        tiles + 2048,
        tiles + 4096,
        tiles + 5120,
        tiles + 5632,
    )
    best, zero, records = splat(like, 0.0), splat(like, 0.0), table + 8 * rows
    groups, wanted = elements // group, mask_bits(is_used)
    one = to_i32(splat(like, 1.0))
    for part in range(groups):
        store(on_grid, part, one if grid_rule == 0 else to_i32(zero))
    whole = top * np.float32(2.0) + np.float32(1.0)
    for number in range(-tries, tries + 1):
        factor = splat(like, whole + np.float32(number) * step) / largest
        snap(
            like,
            tiles,
            trial,
            trial_on_grid,
            elements,
            lanes,
            group,
            top,
            factor,
            splat(like, 1.0) / factor,
            table,
            records,
            wanted,
        )
        product_sum, square_sum = grid_sums(like, tiles, weights, trial, elements)
        is_better = (square_sum > 0.0) & (product_sum * product_sum > best * square_sum)
        if mask_bits(is_better):
            scale = select(is_better, product_sum / square_sum, scale)
            best = select(is_better, scale * product_sum, best)
            for i in range(elements):
                store(levels, i, select(is_better, load(like, trial, i), load(like, levels, i)))
            for part in range(groups):
                store(on_grid, part, select(is_better, load(one, trial_on_grid, part), load(one, on_grid, part)))
    entries = load(one, on_grid, 0)
    for part in range(1, groups):
        entries = entries + load(one, on_grid, part)
    is_again = is_used & (scale > 0.0)
    if grid_rule < 2:
        is_again = is_again & (entries < splat(entries, np.int32(groups)))
    if mask_bits(is_again):
        factor = splat(like, 1.0) / scale
        snap(
            like,
            tiles,
            trial,
            trial_on_grid,
            elements,
            lanes,
            group,
            top,
            factor,
            scale,
            table,
            records,
            mask_bits(is_again),
        )
        for i in range(elements):
            is_taken = is_again
            if grid_rule == 0:
                is_taken = is_again & (load(one, on_grid, i // group) < one)
            store(levels, i, select(is_taken, load(like, trial, i), load(like, levels, i)))
        product_sum, square_sum = grid_sums(like, tiles, weights, levels, elements)
        scale = select(is_again & (square_sum > 0.0), product_sum / square_sum, scale)
    for i in range(elements):
        store(levels, i, select(is_used, load(like, levels, i), zero))
    return select(is_used, scale, zero)
