"""Blocks with error feedback: the kernels, each for one panel of columns of sixteen rows.

``left`` [columns, 16 groups] has the values, and receives the errors that later panels make up for. Codes are bytes
[columns, 16 groups], scales and units are f32, a vector for each block or sub-block. See `feedback_rounding`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.kernels.codecs.feedback_rounding import (
    LANES,
    linear_commit,
    load_tile,
    store_tile,
    table_commit,
    whole_multiple,
)
from lbrx.devices.cpu.kernels.codecs.feedback_search import (
    FREE,
    HALF,
    MULTIPLE,
    min_search,
    symmetric_search,
    table_search,
)
from lbrx.devices.cpu.simd.elements import load_f32, store_f32
from lbrx.devices.cpu.simd.f32 import absolute, round_to_f16
from lbrx.devices.cpu.simd.memory import peek_f32, stack_bytes
from lbrx.devices.cpu.simd.vectors import f32x16, load, maximum, select, splat, store

TILE_BYTES = 64 * 256
WORK_BYTES = 64 * 32


def _make_symmetric(search: Any, commit: Any) -> Any:
    """Blocks of 32 with one scale."""

    def encode(
        left: int,
        groups: int,
        group: int,
        columns: int,
        factors: int,
        codes: int,
        scales: int,
        bottom: int,
        top: int,
        tries: int,
    ) -> None:
        tile, work = stack_bytes(TILE_BYTES), stack_bytes(WORK_BYTES)
        like = f32x16(0.0)
        zero, levels = splat(like, 0.0), (np.float32(bottom), np.float32(top))
        load_tile(like, left, groups, group, columns, tile)
        for number in range(columns // 32):
            block = 32 * number, 32
            scale = search(like, tile, work, block, factors, columns, levels, tries, HALF, zero, levels)
            store(scales, number * groups + group, scale)
            commit(like, tile, block, factors, columns, scale, zero, levels, codes + LANES * group, LANES * groups)
        store_tile(like, left, groups, group, columns, tile)

    return encode


def _make_super_symmetric(search: Any, commit: Any) -> Any:
    """Blocks of 256 in sub-blocks whose scales are multiples, from ``-bound`` on, of a unit."""

    def encode(
        left: int,
        groups: int,
        group: int,
        columns: int,
        factors: int,
        codes: int,
        units: int,
        scales: int,
        elements: int,
        bottom: int,
        top: int,
        bound: int,
        tries: int,
    ) -> None:
        tile, work = stack_bytes(TILE_BYTES), stack_bytes(WORK_BYTES)
        like = f32x16(0.0)
        zero, levels = splat(like, 0.0), (np.float32(bottom), np.float32(top))
        bounds = np.float32(-bound), np.float32(bound - 1)
        load_tile(like, left, groups, group, columns, tile)
        extreme = zero
        for number in range(columns // elements):
            block = elements * number, elements
            scale = search(like, tile, work, block, factors, columns, levels, tries, FREE, zero, bounds)
            extreme = select(absolute(scale) > absolute(extreme), scale, extreme)
        unit = round_to_f16(extreme * (np.float32(-1.0) / np.float32(bound)))
        store(units, group, unit)
        for number in range(columns // elements):
            block = elements * number, elements
            scale = search(like, tile, work, block, factors, columns, levels, tries, MULTIPLE, unit, bounds)
            store(scales, number * groups + group, whole_multiple(scale, unit, bounds[0], bounds[1]))
            commit(like, tile, block, factors, columns, scale, zero, levels, codes + LANES * group, LANES * groups)
        store_tile(like, left, groups, group, columns, tile)

    return encode


symmetric, table = _make_symmetric(symmetric_search, linear_commit), _make_symmetric(table_search, table_commit)
super_symmetric = _make_super_symmetric(symmetric_search, linear_commit)
super_table = _make_super_symmetric(table_search, table_commit)


def with_min(
    left: int,
    groups: int,
    group: int,
    columns: int,
    factors: int,
    codes: int,
    scales: int,
    lows: int,
    top: int,
    tries: int,
) -> None:
    """Blocks of 32 with a scale and a minimum."""
    tile, work = stack_bytes(TILE_BYTES), stack_bytes(WORK_BYTES)
    like = f32x16(0.0)
    zero, levels = splat(like, 0.0), (np.float32(0.0), np.float32(top))
    load_tile(like, left, groups, group, columns, tile)
    for number in range(columns // 32):
        block = 32 * number, 32
        scale, low = min_search(
            like, tile, work, block, factors, columns, levels, tries, HALF, zero, zero, levels, True
        )
        store(scales, number * groups + group, scale)
        store(lows, number * groups + group, low)
        linear_commit(like, tile, block, factors, columns, scale, low, levels, codes + LANES * group, LANES * groups)
    store_tile(like, left, groups, group, columns, tile)


def super_with_min(
    left: int,
    groups: int,
    group: int,
    columns: int,
    factors: int,
    codes: int,
    units: int,
    low_units: int,
    scales: int,
    lows: int,
    elements: int,
    top: int,
    bound: int,
    tries: int,
) -> None:
    """Blocks of 256 in sub-blocks whose scales and minimums are multiples, up to ``bound``, of two units."""
    tile, work = stack_bytes(TILE_BYTES), stack_bytes(WORK_BYTES)
    like = f32x16(0.0)
    zero, levels = splat(like, 0.0), (np.float32(0.0), np.float32(top))
    bounds = np.float32(0.0), np.float32(bound)
    load_tile(like, left, groups, group, columns, tile)
    largest, deepest = zero, zero
    for number in range(columns // elements):
        block = elements * number, elements
        scale, low = min_search(
            like, tile, work, block, factors, columns, levels, tries, FREE, zero, zero, bounds, False
        )
        largest, deepest = maximum(scale, largest), maximum(zero - low, deepest)
    unit = round_to_f16(largest * (np.float32(1.0) / bounds[1]))
    low_unit = round_to_f16(deepest * (np.float32(1.0) / bounds[1]))
    store(units, group, unit)
    store(low_units, group, low_unit)
    for number in range(columns // elements):
        block = elements * number, elements
        scale, low = min_search(
            like, tile, work, block, factors, columns, levels, tries, MULTIPLE, unit, low_unit, bounds, False
        )
        store(scales, number * groups + group, whole_multiple(scale, unit, bounds[0], bounds[1]))
        store(lows, number * groups + group, whole_multiple(zero - low, low_unit, bounds[0], bounds[1]))
        linear_commit(like, tile, block, factors, columns, scale, low, levels, codes + LANES * group, LANES * groups)
    store_tile(like, left, groups, group, columns, tile)


def fixed(rows: int, count: int, columns: int, factors: int, decoded: int, errors: int) -> None:
    """Elements of ``count`` rows become the numbers that are given; ``errors`` are what later columns need."""
    like = f32x16(0.0)
    for row in range(count):
        values, given, out = rows + 4 * row * columns, decoded + 4 * row * columns, errors + 4 * row * columns
        for i in range(columns):
            error = (peek_f32(values, i) - load_f32(given, i)) / load_f32(factors, i * columns + i)
            store_f32(out, i, error)
            for vector in range(i // LANES, columns // LANES):
                factor = load(like, factors + 4 * i * columns, vector)
                store(values, vector, load(like, values, vector) - factor * error)
