"""Blocks of codebooks with error feedback: of all entries, a group gets the one with the least loss.

The scales of sub-blocks are given. Signs are those of the values, as they are when a column is reached. See
`feedback_rounding`; ``codebook`` has the magnitudes of an entry, signed bytes, one after the other.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.kernels.codecs.feedback_rounding import LANES, LARGEST, ONE, load_tile, store_tile
from lbrx.devices.cpu.simd.elements import load_byte
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.memory import peek_f32, peek_i32, poke_f32, stack_bytes
from lbrx.devices.cpu.simd.vectors import f32x16, load, select, splat, store, store_i16, store_u8, to_i32

TILE_BYTES = 64 * 256
WORK_BYTES = 64 * 9  # values of a group, then numbers of entries


@jit
def _with_sign(value: Any, magnitude: Any) -> Any:
    return select(value < 0.0, splat(value, 0.0) - magnitude, magnitude)


@jit
def _loss(
    like: Any, tile: Any, work: Any, first: Any, size: Any, factors: Any, columns: Any, scale: Any, entry: Any
) -> Any:
    for i in range(size):
        store(work, i, load(like, tile, first + i))
    total = splat(like, 0.0)
    for i in range(size):
        row = factors + 4 * ((first + i) * columns + first)
        value = load(like, work, i)
        error = (value - _with_sign(value, scale * np.float32(load_byte(entry, i)))) * (ONE / peek_f32(row, i))
        total = total + error * error
        for k in range(i + 1, size):
            store(work, k, load(like, work, k) - error * peek_f32(row, k))
    return total


@jit
def _best_entry(
    like: Any,
    tile: Any,
    work: Any,
    first: Any,
    size: Any,
    factors: Any,
    columns: Any,
    scale: Any,
    codebook: Any,
    entries: Any,
) -> Any:
    best_loss, best = splat(like, LARGEST), to_i32(splat(like, 0.0))
    for number in range(entries):
        now = _loss(like, tile, work, first, size, factors, columns, scale, codebook + size * number)
        is_better = now < best_loss
        best_loss = select(is_better, now, best_loss)
        best = select(is_better, splat(best, np.int32(number)), best)
    return best


def grid(
    left: int,
    groups: int,
    group: int,
    columns: int,
    factors: int,
    signs: int,
    numbers: int,
    scales: int,
    codebook: int,
    entries: int,
    size: int,
    elements: int,
) -> None:
    """``numbers`` (i16, a vector for each ``size`` columns) and ``signs`` (bytes, 1 for negative) are written."""
    tile, work = stack_bytes(TILE_BYTES), stack_bytes(WORK_BYTES)
    like = f32x16(0.0)
    none, one = to_i32(splat(like, 0.0)), to_i32(splat(like, 1.0))
    load_tile(like, left, groups, group, columns, tile)
    for part in range(columns // size):
        first = size * part
        scale = load(like, scales, first // elements * groups + group)
        best = _best_entry(like, tile, work, first, size, factors, columns, scale, codebook, entries)
        store_i16(numbers + 2 * LANES * (part * groups + group), best)
        store(work + 64 * 8, 0, best)
        for lane in range(LANES):
            entry = codebook + size * np.int64(peek_i32(work + 64 * 8, lane))
            for i in range(size):
                poke_f32(work, LANES * i + lane, np.float32(load_byte(entry, i)))
        for i in range(first, first + size):
            row = factors + 4 * i * columns
            value = load(like, tile, i)
            error = (value - _with_sign(value, scale * load(like, work, i - first))) * (ONE / peek_f32(row, i))
            store_u8(signs + LANES * (i * groups + group), select(value < 0.0, one, none))
            store(tile, i, error)
            for k in range(i + 1, columns):
                store(tile, k, load(like, tile, k) - error * peek_f32(row, k))
    store_tile(like, left, groups, group, columns, tile)
