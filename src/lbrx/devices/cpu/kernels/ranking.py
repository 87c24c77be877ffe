"""Ranks along a row: by a radix sort, or bounds of them from counts of the keys' top bits.

Keys are those of selection.py. Equal keys are ranked in their order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from lbrx.devices.cpu.simd.memory import peek_i32, peek_i64, poke_i32, poke_i64
from lbrx.devices.cpu.simd.scalars import lowest_bit
from lbrx.devices.cpu.simd.vectors import mask_above_i32
from lbrx.engine.block_sizes import (
    RANK_BIN_BITS,
    RANK_BIN_SHIFT,
    RANK_DIGIT_BITS,
    RANK_RESULT_RUN,
    RANK_RUNS,
    RANK_TEST_KEYS_RUN,
)

_SMALLEST_I32, _SMALLEST_I64 = -(1 << 31), np.int64(-(1 << 63))
_DIGITS = 1 << RANK_DIGIT_BITS


@njit
def _starts(counts: Any, count: Any) -> Any:
    """Turn the counts of a digit into positions; False if all elements share one value of the digit."""
    position = 0
    for value in range(_DIGITS):
        here = peek_i64(counts, value)
        if here == count:
            return False
        poke_i64(counts, value, position)
        position += here
    return True


@njit
def _clear_counts(counts: Any, digits: Any) -> None:
    for index in range(digits * _DIGITS):
        poke_i64(counts, index, 0)


@njit
def _count_digits(counts: Any, key: Any, digits: Any) -> None:
    for digit in range(digits):
        index = digit * _DIGITS + ((key >> (digit * RANK_DIGIT_BITS)) & (_DIGITS - 1))
        poke_i64(counts, index, peek_i64(counts, index) + 1)


@njit
def rank_row_i32(buffer: Any, count: Any, descending: Any) -> None:
    """Rank ``count`` 32-bit keys that lie as int64 at the start of the buffer; see ``rank_buffer_bytes``.

    A key and its index share one int64, so that a pass of the radix sort moves one word for each element.
    """
    words, others = buffer, buffer + 8 * count
    ranks, counts = buffer + 8 * RANK_RESULT_RUN * count, buffer + 8 * RANK_RUNS * count
    _clear_counts(counts, 4)
    for j in range(count):
        key = (peek_i64(words, j) ^ -_SMALLEST_I32) & 0xFFFFFFFF
        key = 0xFFFFFFFF - key if descending else key
        _count_digits(counts, key, 4)
        poke_i64(words, j, (key << 31) | j)
    for digit in range(4):
        starts = counts + 8 * _DIGITS * digit
        if _starts(starts, count):
            for j in range(count):
                word = peek_i64(words, j)
                value = (word >> (31 + digit * RANK_DIGIT_BITS)) & (_DIGITS - 1)
                index = peek_i64(starts, value)
                poke_i64(starts, value, index + 1)
                poke_i64(others, index, word)
            words, others = others, words
    for j in range(count):
        poke_i64(ranks, peek_i64(words, j) & 0x7FFFFFFF, j)


@njit
def rank_row_i64(buffer: Any, count: Any, descending: Any) -> None:
    """Rank ``count`` 64-bit keys at the start of the buffer."""
    keys, order = buffer, buffer + 8 * count
    other_keys, other_order = buffer + 16 * count, buffer + 24 * count
    ranks, counts = buffer + 8 * RANK_RESULT_RUN * count, buffer + 8 * RANK_RUNS * count
    _clear_counts(counts, 8)
    for j in range(count):
        key = peek_i64(keys, j) ^ _SMALLEST_I64
        key = ~key if descending else key
        _count_digits(counts, key, 8)
        poke_i64(keys, j, key)
        poke_i64(order, j, j)
    for digit in range(8):
        starts = counts + 8 * _DIGITS * digit
        if _starts(starts, count):
            for j in range(count):
                key = peek_i64(keys, j)
                value = (key >> (digit * RANK_DIGIT_BITS)) & (_DIGITS - 1)
                index = peek_i64(starts, value)
                poke_i64(starts, value, index + 1)
                poke_i64(other_keys, index, key)
                poke_i64(other_order, index, peek_i64(order, j))
            keys, other_keys = other_keys, keys
            order, other_order = other_order, order
    for j in range(count):
        poke_i64(ranks, peek_i64(order, j), j)


_BINS = 1 << RANK_BIN_BITS
_MOST_BOUNDED = (1 << 16) - 1  # columns whose ranks fit into half an int32
_MOST_SQUARES = 256  # sum of squared bin sizes, per column, from which a sort is faster than counting single ranks


@njit
def _extremes(keys: Any, count: Any) -> Any:
    lowest = highest = peek_i32(keys, 0)
    for j in range(count):
        key = peek_i32(keys, j)
        lowest, highest = min(lowest, key), max(highest, key)
    return lowest, highest


@njit
def _bin(key: Any, first: Any) -> Any:
    """The bin of a key: by its top bits above the lowest key of the bins; what is below goes into the first."""
    above: Any = max(key, first) - first
    return np.int32(np.int32(above) >> RANK_BIN_SHIFT)


@njit
def _find_bins(keys: Any, count: Any, first: Any, bins: Any) -> None:
    for j in range(count):
        poke_i32(bins, j, _bin(peek_i32(keys, j), first))


@njit
def _grow(counts: Any, index: Any) -> None:
    poke_i32(counts, index, np.int32(peek_i32(counts, index) + 1))


@njit
def _count_bins(bins: Any, count: Any, counts: Any) -> Any:
    """Sizes of the bins; returns the sum of their squares.

    They are counted in two tables, so that equal neighbours do not wait for each other.
    """
    others = counts + 4 * _BINS
    for index in range(_BINS):
        poke_i64(counts, index, 0)
    for j in range(0, count - 1, 2):
        _grow(counts, np.int64(peek_i32(bins, j)))
        _grow(others, np.int64(peek_i32(bins, j + 1)))
    if count % 2:
        _grow(counts, np.int64(peek_i32(bins, count - 1)))
    squares = np.int64(0)
    for index in range(_BINS):
        size = np.int32(peek_i32(counts, index) + peek_i32(others, index))
        poke_i32(counts, index, size)
        squares += np.int64(size) * np.int64(size)
    return squares


@njit
def _bounds_of_bins(counts: Any) -> None:
    """The lowest rank of each bin and, in the high half, its highest, instead of its size."""
    start = np.int64(0)
    for index in range(_BINS):
        end = start + np.int64(peek_i32(counts, index))
        poke_i32(counts, index, np.int32(start | ((end - 1) << 16)))
        start = end


@njit
def _count_equal(keys: Any, count: Any, wanted: Any) -> Any:
    equal = np.int32(0)
    for j in range(count):
        equal = np.int32(equal + np.int32(peek_i32(keys, j) == wanted))
    return np.int64(equal)


@njit
def _sort(buffer: Any, keys: Any, count: Any) -> None:
    for j in range(count):
        poke_i64(buffer, j, np.int64(peek_i32(keys, j)))
    rank_row_i32(buffer, count, False)


@njit
def rank_bounds_i32(buffer: Any, count: Any) -> Any:
    """Between which ranks each of the keys lies, or False if the row was sorted; see rank_tests.py for the buffer.

    Bounds are the lower in the low half of an int32, the upper in its high half. The bins span the keys next to the
    largest. Where all keys of the lowest bin are equal (often zero), their ranks follow from their order.
    """
    keys, counts = buffer + 8 * RANK_TEST_KEYS_RUN * count, buffer + 8 * RANK_RUNS * count
    bounds = keys + 4 * count
    if count > _MOST_BOUNDED:
        _sort(buffer, keys, count)
        return False
    lowest, highest = _extremes(keys, count)
    span_start: Any = (np.int64(highest) | ((1 << RANK_BIN_SHIFT) - 1)) + 1 - (np.int64(_BINS) << RANK_BIN_SHIFT)
    first = np.int32(max(span_start, _SMALLEST_I32))
    _find_bins(keys, count, first, bounds)
    squares = _count_bins(bounds, count, counts)
    equals = np.int64(peek_i32(counts, np.int64(_bin(lowest, first))))
    are_equal = _count_equal(keys, count, lowest) == equals
    if squares - (equals * equals if are_equal else 0) > _MOST_SQUARES * count:
        _sort(buffer, keys, count)
        return False
    _bounds_of_bins(counts)
    for j in range(count):
        poke_i32(bounds, j, peek_i32(counts, np.int64(peek_i32(bounds, j))))
    if are_equal:
        rank = np.int32(0)
        for j in range(count):
            if peek_i32(keys, j) == lowest:
                poke_i32(bounds, j, np.int32(rank | np.int32(rank << 16)))
                rank = np.int32(rank + 1)
    return True


@njit
def rank_among_i32(keys: Any, count: Any, index: Any) -> Any:
    """The rank of one key among all: how many are smaller, or equal and before it."""
    key = peek_i32(keys, index)
    larger_before = smaller_after = np.int32(0)
    for j in range(index):
        larger_before = np.int32(larger_before + np.int32(peek_i32(keys, j) > key))
    for j in range(index + 1, count):
        smaller_after = np.int32(smaller_after + np.int32(peek_i32(keys, j) < key))
    return np.int32(np.int32(index) - larger_before + smaller_after)


@njit
def next_undecided(outcomes: Any, start: Any, count: Any) -> Any:
    """The first index from ``start`` on whose outcomes at the two bounds differ (they are 1 or 2), or ``count``."""
    index = start
    while index + 64 <= count:
        address = outcomes + 4 * index
        undecided = mask_above_i32(address, np.int32(0)) & ~mask_above_i32(address, np.int32(2))
        if undecided != 0:
            return index + lowest_bit(undecided)
        index += 64
    while index < count:
        outcome = peek_i32(outcomes, index)
        if (outcome == 1) | (outcome == 2):
            return index
        index += 1
    return count


RANKING_FUNCTIONS: dict[str, Any] = {
    function.__name__: function
    for function in (rank_row_i32, rank_row_i64, rank_bounds_i32, rank_among_i32, next_undecided)
}
