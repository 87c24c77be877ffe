"""Tables for encoding with a codebook: the nearest entries of every group of levels that is not an entry itself.

A value of a codebook is a level of its alphabet. A table has a row for each group of levels, numbered with the first
level as the lowest digit: the number of records, and the first record (or the number of the entry if there are none).
Behind the rows are the records. A record holds eight entries: their numbers, then level by level, so that a vector
has the same level of all eight. The last record of a row is filled up with the row's first entry.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.tensors.codecs.codebook_tables import Codebook, iq1, iq2_s, iq2_xs, iq2_xxs, iq3_s, iq3_xxs

Table = npt.NDArray[np.int32]
LANES = 8
_ROWS_AT_A_TIME = 512


def digits(group: int, radix: int) -> npt.NDArray[np.int16]:
    """All groups of levels in the order of their numbers, as a matrix of (numbers, group)."""
    numbers = np.arange(radix**group)[:, None]
    return (numbers // radix ** np.arange(group) % radix).astype(np.int16)


def nearest_entries(
    levels: npt.NDArray[np.int16], entries: npt.NDArray[np.int16], shells: int
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The entries in the ``shells`` nearest distances of each group: rows and entries, the nearest first.

    >>> rows, entries = nearest_entries(np.array([[0, 0]], np.int16), np.array([[2, 2], [0, 1], [1, 0]], np.int16), 1)
    >>> rows.tolist(), entries.tolist()
    ([0, 0], [1, 2])
    """
    found = []
    for start in range(0, len(levels), _ROWS_AT_A_TIME):
        difference = levels[start : start + _ROWS_AT_A_TIME, None, :] - entries[None]
        squares = np.einsum("ijk,ijk->ij", difference, difference)
        limit = np.zeros(len(squares), squares.dtype) - 1
        for _ in range(shells):
            beyond = np.where(squares > limit[:, None], squares, np.iinfo(squares.dtype).max)
            limit = np.where(beyond.min(axis=1) == np.iinfo(squares.dtype).max, limit, beyond.min(axis=1))
        row, entry = np.nonzero(squares <= limit[:, None])
        order = np.lexsort((entry, squares[row, entry], row))
        found.append((row[order] + start, entry[order]))
    return np.concatenate([row for row, _ in found]), np.concatenate([entry for _, entry in found])


def table(codebook: Codebook, group: int, values: tuple[int, ...], shells: int) -> Table:
    """The table of a codebook. ``values`` are those of its levels in records."""
    entries = np.searchsorted(np.unique(codebook), codebook).astype(np.int16).reshape(-1, group)
    radix = len(values)
    levels = digits(group, radix)
    numbers = entries @ radix ** np.arange(group)
    is_entry = np.zeros(len(levels), bool)
    is_entry[numbers] = True
    others = np.flatnonzero(~is_entry)
    row, entry = nearest_entries(levels[others], entries, shells)
    counts = np.bincount(row, minlength=len(others))
    records = -(-counts // LANES)
    first_record = np.concatenate([[0], np.cumsum(records)[:-1]])
    first_entry = entry[np.concatenate([[0], np.cumsum(counts)[:-1]])]
    in_records = np.repeat(first_entry, records * LANES)
    in_records[np.arange(len(entry)) + np.repeat(first_record * LANES - np.cumsum(counts) + counts, counts)] = entry
    rows = np.zeros((len(levels), 2), np.int32)
    rows[numbers, 1] = np.arange(len(entries))
    rows[others, 0], rows[others, 1] = records, first_record
    lists = in_records.reshape(-1, LANES)
    columns = np.array(values, np.int8)[entries][lists].transpose(0, 2, 1)
    words = np.ascontiguousarray(columns).view(np.int32).reshape(len(lists), -1)
    body = np.concatenate([lists.astype(np.int32), words], axis=1)
    return np.concatenate([rows.reshape(-1), body.reshape(-1)])


@cache
def iq1_neighbours() -> Table:
    return table(iq1(), 8, (-1, 0, 1), 3)


@cache
def iq2_xxs_neighbours() -> Table:
    return table(iq2_xxs(), 8, (1, 3, 5), 2)


@cache
def iq2_xs_neighbours() -> Table:
    return table(iq2_xs(), 8, (1, 3, 5), 2)


@cache
def iq2_s_neighbours() -> Table:
    return table(iq2_s(), 8, (1, 3, 5), 1)


@cache
def iq3_xxs_neighbours() -> Table:
    return table(iq3_xxs(), 4, (1, 3, 5, 7, 9, 11, 13, 15), 2)


@cache
def iq3_s_neighbours() -> Table:
    return table(iq3_s(), 4, (1, 3, 5, 7, 9, 11, 13, 15), 3)
