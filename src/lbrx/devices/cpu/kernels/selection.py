"""Order within a pass: sortable keys, histograms of keys, collection of keys.

A key is the bits of a value turned into an integer that sorts like the value: NaN above everything, as NumPy's
sorts have it, and both zeros alike. Keys are signed: k-th largest of keys is the key of the k-th largest.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from lbrx.devices.cpu.simd.memory import peek_f32, peek_i32, peek_i64, poke_i64
from lbrx.devices.cpu.simd.scalars import bit_count, bits_from_f32, bits_from_f64, f32_from_bits, lowest_bit
from lbrx.devices.cpu.simd.vectors import mask_above_f32, mask_above_i32, mask_from_f32
from lbrx.engine.block_sizes import BINS, TABLES

_LARGEST_I32, _LARGEST_I64 = np.int32(0x7FFFFFFF), np.int64(0x7FFFFFFFFFFFFFFF)
_SMALLEST_I32 = -(1 << 31)
_KEY_OF_INFINITY = 0x7F800000
_ALL_BITS = np.uint64(0xFFFFFFFFFFFFFFFF)
_ZERO_F32, _ZERO_F64 = np.float32(0.0), np.float64(0.0)


@njit
def key_of_f32(value: Any) -> Any:
    bits = bits_from_f32(value + _ZERO_F32)
    key = np.int32(bits ^ (np.int32(bits >> np.int32(31)) & _LARGEST_I32))
    return _LARGEST_I32 if value != value else key


@njit
def key_of_f64(value: Any) -> Any:
    bits = bits_from_f64(value + _ZERO_F64)
    key = bits ^ ((bits >> 63) & _LARGEST_I64)
    return _LARGEST_I64 if value != value else key


@njit
def key_of_i32(value: Any) -> Any:
    return np.int32(value)


@njit
def key_of_i64(value: Any) -> Any:
    return np.int64(value)


@njit
def _count_i32(table: Any, key: Any, shift: Any, first: Any) -> None:
    number = (np.int64(key) >> shift) - first
    if (number >= 0) & (number < BINS):
        poke_i64(table, number, peek_i64(table, number) + 1)


@njit
def histogram_i32(tile: Any, count: Any, tables: Any, shift: Any, first: Any) -> None:
    """Count the keys of a tile by ``(key >> shift) - first``; keys outside the bins are left out."""
    whole = count - count % TABLES
    for j in range(0, whole, TABLES):
        _count_i32(tables, peek_i32(tile, j), shift, first)
        _count_i32(tables + 8 * BINS, peek_i32(tile, j + 1), shift, first)
        _count_i32(tables + 16 * BINS, peek_i32(tile, j + 2), shift, first)
        _count_i32(tables + 24 * BINS, peek_i32(tile, j + 3), shift, first)
    for j in range(whole, count):
        _count_i32(tables, peek_i32(tile, j), shift, first)


@njit
def histogram_i64(tile: Any, count: Any, tables: Any, shift: Any, first: Any) -> None:
    for j in range(count):
        _count_i32(tables + 8 * BINS * (j % TABLES), peek_i64(tile, j), shift, first)


@njit
def _append(keys: Any, indices: Any, collected: Any, key: Any, index: Any) -> Any:
    poke_i64(keys, collected, key)
    poke_i64(indices, collected, index)
    return collected + 1


@njit
def _f32_of_key(key: Any) -> Any:
    narrow = np.int32(key)
    return f32_from_bits(np.int32(narrow ^ (np.int32(narrow >> np.int32(31)) & _LARGEST_I32)))


@njit
def _put_run(keys: Any, indices: Any, state: Any, equal: Any, above: Any, start: Any) -> None:
    """Append a tile's count of elements that are equal to the wanted key, and count those above."""
    collected = peek_i64(state, 0)
    if equal > 0:
        collected = _append(keys, indices, collected, equal, start)
    poke_i64(state, 0, collected)
    poke_i64(state, 1, peek_i64(state, 1) + above)


@njit
def _count_runs_i32(tile: Any, count: Any, start: Any, key: Any, keys: Any, indices: Any, state: Any) -> None:
    equal = above = 0
    for j in range(count):
        other = np.int64(peek_i32(tile, j))
        above += other > key
        equal += other == key
    _put_run(keys, indices, state, equal, above, start)


@njit
def _count_runs_f32(values: Any, count: Any, start: Any, key: Any, keys: Any, indices: Any, state: Any) -> None:
    wanted = _f32_of_key(key)
    equal = above = 0
    whole = count - count % 64
    for group in range(0, whole, 64):
        over = mask_above_f32(values + 4 * group, wanted)
        above += bit_count(over)
        equal += bit_count(mask_from_f32(values + 4 * group, wanted) & ~over)
    for j in range(whole, count):
        other = np.int64(key_of_f32(peek_f32(values, j)))
        above += other > key
        equal += other == key
    _put_run(keys, indices, state, equal, above, start)


def _make_collect(key_at: Any, count_runs: Any = None, bounds: Any = None, masks: Any = None) -> Any:
    """A function that appends the keys within [low, high] and their indices, and counts those above.

    ``state`` holds how many were collected and how many are above. A ``low`` above ``high`` asks for the one key
    ``high`` (not NaN): then a tile's count of it is appended, and where the tile starts. ``masks(address,
    bounds(low, high))`` are two masks of 64 elements: those above, and those within.
    """
    is_masked = masks is not None

    @njit
    def collect(tile: Any, count: Any, start: Any, low: Any, high: Any, keys: Any, indices: Any, state: Any) -> None:
        if is_masked and low > high:
            count_runs(tile, count, start, high, keys, indices, state)
            return
        collected, above, whole = peek_i64(state, 0), peek_i64(state, 1), 0
        if is_masked:
            whole = count - count % 64
            limits = bounds(low, high)
            for group in range(0, whole, 64):
                over, inside = masks(tile + 4 * group, limits)
                above += bit_count(over)
                while inside != 0:
                    j = group + lowest_bit(inside)
                    collected = _append(keys, indices, collected, key_at(tile, j), start + j)
                    inside &= inside - np.uint64(1)
        for j in range(whole, count):
            key = key_at(tile, j)
            above += key > high
            if (key >= low) & (key <= high):
                collected = _append(keys, indices, collected, key, start + j)
        poke_i64(state, 0, collected)
        poke_i64(state, 1, above)

    return collect


@njit
def _bounds_i32(low: Any, high: Any) -> Any:
    return np.int32(max(low - 1, _SMALLEST_I32)), np.int32(high), low <= _SMALLEST_I32


@njit
def _masks_i32(tile: Any, bounds: Any) -> Any:
    below_low, top, takes_smallest = bounds
    over = mask_above_i32(tile, top)
    return over, (_ALL_BITS if takes_smallest else mask_above_i32(tile, below_low)) & ~over


@njit
def _bounds_f32(low: Any, high: Any) -> Any:
    lowest, highest = _f32_of_key(max(low, -_KEY_OF_INFINITY - 1)), _f32_of_key(min(high, _KEY_OF_INFINITY))
    return lowest, highest, high > _KEY_OF_INFINITY


@njit
def _masks_f32(values: Any, bounds: Any) -> Any:
    lowest, highest, takes_nan = bounds
    over = np.uint64(0) if takes_nan else mask_above_f32(values, highest)
    return over, mask_from_f32(values, lowest) & ~over


@njit
def _key_at_i32(tile: Any, j: Any) -> Any:
    return np.int64(peek_i32(tile, j))


@njit
def _key_at_f32(values: Any, j: Any) -> Any:
    return np.int64(key_of_f32(peek_f32(values, j)))


collect_i32 = _make_collect(_key_at_i32, _count_runs_i32, _bounds_i32, _masks_i32)
collect_f32 = _make_collect(_key_at_f32, _count_runs_f32, _bounds_f32, _masks_f32)  # values, not keys
collect_i64 = _make_collect(peek_i64)


@njit
def first_largest_f32(values: Any, largest: Any) -> Any:
    """The index of the first value that is the largest of all, or NaN if that is what is called the largest."""
    index = 0
    if largest != largest:
        while peek_f32(values, index) == peek_f32(values, index):
            index += 1
        return index
    while True:
        collected = mask_from_f32(values + 4 * index, largest)
        if collected != 0:
            return index + lowest_bit(collected)
        index += 64


SELECTION_FUNCTIONS: dict[str, Any] = {
    "key_of_f32": key_of_f32,
    "key_of_f64": key_of_f64,
    "key_of_i32": key_of_i32,
    "key_of_i64": key_of_i64,
    "histogram_i32": histogram_i32,
    "histogram_i64": histogram_i64,
    "collect_i32": collect_i32,
    "collect_f32": collect_f32,
    "collect_i64": collect_i64,
    "first_largest_f32": first_largest_f32,
}
