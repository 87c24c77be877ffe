"""Order within a pass: sortable keys, histograms of keys, collection of keys, ranks along a row.

A key is the bits of a value turned into an integer that sorts like the value: NaN above everything, as NumPy's
sorts have it, and both zeros alike. Keys are signed: k-th largest of keys is the key of the k-th largest.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from lbrx.devices.cpu.constants import BINS, RANK_DIGIT_BITS, TABLES
from lbrx.devices.cpu.tiles import TILE_FUNCTIONS

_bits_of_f32, _bits_of_f64 = TILE_FUNCTIONS["bits_of_f32"], TILE_FUNCTIONS["bits_of_f64"]
_peek_i32, _peek_i64 = TILE_FUNCTIONS["peek_i32"], TILE_FUNCTIONS["peek_i64"]
_poke_i32, _poke_i64 = TILE_FUNCTIONS["poke_i32"], TILE_FUNCTIONS["poke_i64"]
_LARGEST_I32, _LARGEST_I64 = np.int32(0x7FFFFFFF), np.int64(0x7FFFFFFFFFFFFFFF)
_ZERO_F32, _ZERO_F64 = np.float32(0.0), np.float64(0.0)


@njit
def key_of_f32(value: Any) -> Any:
    bits = _bits_of_f32(value + _ZERO_F32)
    key = np.int32(bits ^ (np.int32(bits >> np.int32(31)) & _LARGEST_I32))
    return _LARGEST_I32 if value != value else key


@njit
def key_of_f64(value: Any) -> Any:
    bits = _bits_of_f64(value + _ZERO_F64)
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
    place = (np.int64(key) >> shift) - first
    if (place >= 0) & (place < BINS):
        _poke_i64(table, place, _peek_i64(table, place) + 1)


@njit
def histogram_i32(tile: Any, count: Any, tables: Any, shift: Any, first: Any) -> None:
    """Count the keys of a tile by ``(key >> shift) - first``; keys outside the bins are left out."""
    whole = count - count % TABLES
    for j in range(0, whole, TABLES):
        _count_i32(tables, _peek_i32(tile, j), shift, first)
        _count_i32(tables + 8 * BINS, _peek_i32(tile, j + 1), shift, first)
        _count_i32(tables + 16 * BINS, _peek_i32(tile, j + 2), shift, first)
        _count_i32(tables + 24 * BINS, _peek_i32(tile, j + 3), shift, first)
    for j in range(whole, count):
        _count_i32(tables, _peek_i32(tile, j), shift, first)


@njit
def histogram_i64(tile: Any, count: Any, tables: Any, shift: Any, first: Any) -> None:
    for j in range(count):
        _count_i32(tables + 8 * BINS * (j % TABLES), _peek_i64(tile, j), shift, first)


@njit
def collect_i32(tile: Any, count: Any, start: Any, low: Any, high: Any, keys: Any, places: Any, found: Any) -> Any:
    """Append the keys within [low, high] and their indices; returns how many there are now."""
    for j in range(count):
        key = np.int64(_peek_i32(tile, j))
        _poke_i64(keys, found, key)
        _poke_i64(places, found, start + j)
        found += np.int64((key >= low) & (key <= high))
    return found


@njit
def collect_i64(tile: Any, count: Any, start: Any, low: Any, high: Any, keys: Any, places: Any, found: Any) -> Any:
    for j in range(count):
        key = _peek_i64(tile, j)
        _poke_i64(keys, found, key)
        _poke_i64(places, found, start + j)
        found += np.int64((key >= low) & (key <= high))
    return found


@njit
def _sort_pass(keys: Any, order: Any, next_keys: Any, next_order: Any, count: Any, shift: Any, counts: Any) -> Any:
    """One stable pass of a radix sort by one digit; False (and nothing moved) if all keys share the digit."""
    bins = 1 << RANK_DIGIT_BITS
    for b in range(bins):
        _poke_i64(counts, b, 0)
    for j in range(count):
        digit = (_peek_i64(keys, j) >> shift) & (bins - 1)
        _poke_i64(counts, digit, _peek_i64(counts, digit) + 1)
    position = 0
    for b in range(bins):
        here = _peek_i64(counts, b)
        if here == count:
            return False
        _poke_i64(counts, b, position)
        position += here
    for j in range(count):
        key = _peek_i64(keys, j)
        digit = (key >> shift) & (bins - 1)
        place = _peek_i64(counts, digit)
        _poke_i64(counts, digit, place + 1)
        _poke_i64(next_keys, place, key)
        _poke_i64(next_order, place, _peek_i64(order, j))
    return True


@njit
def rank_row(buffer: Any, count: Any, descending: Any) -> None:
    """Turn ``count`` keys at the start of ``buffer`` into ranks there.

    The buffer holds four runs of ``count`` int64 and the counts of one digit: see ``rank_buffer_bytes``.
    """
    keys, order = buffer, buffer + 8 * count
    other_keys, other_order = buffer + 16 * count, buffer + 24 * count
    counts = buffer + 32 * count
    sign = np.int64(-9223372036854775807 - 1)
    for j in range(count):
        key = _peek_i64(keys, j) ^ sign
        _poke_i64(keys, j, ~key if descending else key)
        _poke_i64(order, j, j)
    for digit in range(6):
        if _sort_pass(keys, order, other_keys, other_order, count, digit * RANK_DIGIT_BITS, counts):
            keys, other_keys = other_keys, keys
            order, other_order = other_order, order
    for j in range(count):
        _poke_i64(buffer, _peek_i64(order, j), j)


SELECTION_FUNCTIONS: dict[str, Any] = {
    function.__name__: function
    for function in (
        key_of_f32,
        key_of_f64,
        key_of_i32,
        key_of_i64,
        histogram_i32,
        histogram_i64,
        collect_i32,
        collect_i64,
        rank_row,
    )
}
