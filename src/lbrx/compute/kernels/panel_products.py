"""Rows of quantized blocks times many vectors, as sums of products of i16.

Vectors are coded as in `block_products`, and laid out in panels of 16: of every 32 elements first elements 0 and 1 of
all 16 vectors, then 2 and 3, and so on. Rows are decoded some elements at a time into words that stay in the cache,
and multiplied four or eight at a time with a panel: see `word_rows`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.compute.kernels.wide import ROUNDER, bits_of, fused, lane_sum
from lbrx.compute.kernels.word_blocks import (
    SCALE_ROW_BYTES,
    STEP,
    WORD_ROW_BYTES,
    take_q4_0,
    take_q4_k,
    take_q6_k,
    take_q8_0,
)
from lbrx.compute.kernels.word_rows import FOURS, add_pair, four_sums
from lbrx.compute.kernels.words import store_words, turn_eight
from lbrx.devices.cpu.elements import ELEMENT_FUNCTIONS
from lbrx.quants.kernels.lanes import peek_f32, stack_bytes, store_f32
from lbrx.quants.kernels.vectors import (
    absolute,
    f32x16,
    f32x32,
    jit,
    lane_max,
    load,
    splat,
    store,
    to_f32,
)

number: Any = ELEMENT_FUNCTIONS["load_i64"]
TOP = np.float32(32767.0)
TINY = np.float32(2.0**-100)
ZERO = np.float32(0.0)
PANEL_VECTORS = 16
PANEL_BLOCK_BYTES = 1024  # the words of a block of 32 elements in a panel
MOST_ROWS = 64
TILE_ROWS = 4 * FOURS
TILE_BYTES = 64 * TILE_ROWS


def code_panel(x: int, vectors: int, columns: int, codes: int, scales: int, sums: int) -> None:
    """Code up to 16 vectors as one panel. ``sums`` gets the sums of the blocks as coded; tiny blocks become zeros."""
    words = stack_bytes(512)
    for first in range(0, vectors, 8):
        for block in range(columns // 32):
            for row in range(min(8, vectors - first)):
                values = load(f32x32(0.0), x + 4 * columns * (first + row), block)
                largest = lane_max(absolute(values))
                is_tiny = largest < TINY
                rounded = fused(values, splat(values, ZERO if is_tiny else TOP / largest), splat(values, ROUNDER))
                scale = ZERO if is_tiny else largest / TOP
                store_words(words + 64 * row, bits_of(rounded))
                store_f32(scales, 16 * block + first + row, scale)
                store_f32(sums, 16 * block + first + row, lane_sum(rounded - ROUNDER) * scale)
            out = codes + PANEL_BLOCK_BYTES * block + 4 * first
            turn_eight(words, 64, out, out + 256)
            turn_eight(words + 32, 64, out + 512, out + 768)


def _make_multiply(group: int, has_lows: bool) -> Any:
    """The sums of products of some rows with a panel, scaled and added up in f32.

    Rows have a scale, and a value to take off, for every ``group`` elements: 32 or 16.
    """
    per_block = 32 // group

    @jit
    def add_scaled(total: Any, sums: Any, scale: Any, low: Any, x_scale: Any, x_sum: Any) -> Any:
        found = fused(to_f32(sums), x_scale * peek_f32(scale, 0), total)
        if has_lows:
            found = fused(splat(total, -peek_f32(low, 0)), x_sum, found)
        return found

    @jit
    def add_four(totals: Any, sums: Any, scale: Any, low: Any, x_scale: Any, x_sum: Any) -> Any:
        return (
            add_scaled(totals[0], sums[0], scale, low, x_scale, x_sum),
            add_scaled(totals[1], sums[1], scale + SCALE_ROW_BYTES, low + SCALE_ROW_BYTES, x_scale, x_sum),
            add_scaled(totals[2], sums[2], scale + 2 * SCALE_ROW_BYTES, low + 2 * SCALE_ROW_BYTES, x_scale, x_sum),
            add_scaled(totals[3], sums[3], scale + 3 * SCALE_ROW_BYTES, low + 3 * SCALE_ROW_BYTES, x_scale, x_sum),
        )

    @jit
    def words_after(words: Any, place: Any) -> Any:
        return words + (2 * group if place % per_block < per_block - 1 else 256 - 2 * group * (per_block - 1))

    @jit
    def multiply_four(
        words: Any, scales: Any, lows: Any, x: Any, x_scales: Any, x_sums: Any, pairs: Any, groups: Any, out: Any
    ) -> None:
        like = f32x16(0.0)
        totals = load_four(out)
        for place in range(groups):
            sums = four_sums()
            for pair in range(pairs):
                sums = add_pair(words + 4 * pair, x + 64 * pair, sums)
            block, at = place // per_block, 4 * place
            x_scale, x_sum = load(like, x_scales, block), load(like, x_sums, block)
            totals = add_four(totals, sums, scales + at, lows + at, x_scale, x_sum)
            words = words_after(words, place)
            x += 32 * group
        store_four(out, totals)

    @jit
    def multiply_eight(
        words: Any, scales: Any, lows: Any, x: Any, x_scales: Any, x_sums: Any, pairs: Any, groups: Any, out: Any
    ) -> None:
        like = f32x16(0.0)
        totals, more_totals = load_four(out), load_four(out + 256)
        for place in range(groups):
            sums, more_sums = four_sums(), four_sums()
            for pair in range(pairs):
                sums = add_pair(words + 4 * pair, x + 64 * pair, sums)
                more_sums = add_pair(words + 4 * WORD_ROW_BYTES + 4 * pair, x + 64 * pair, more_sums)
            block, at = place // per_block, 4 * place
            x_scale, x_sum = load(like, x_scales, block), load(like, x_sums, block)
            totals = add_four(totals, sums, scales + at, lows + at, x_scale, x_sum)
            at += 4 * SCALE_ROW_BYTES
            more_totals = add_four(more_totals, more_sums, scales + at, lows + at, x_scale, x_sum)
            words = words_after(words, place)
            x += 32 * group
        store_four(out, totals)
        store_four(out + 256, more_totals)

    return multiply_eight if FOURS == 2 else multiply_four


@jit
def load_four(place: Any) -> Any:
    like = f32x16(0.0)
    return load(like, place, 0), load(like, place, 1), load(like, place, 2), load(like, place, 3)


@jit
def store_four(place: Any, totals: Any) -> None:
    store(place, 0, totals[0])
    store(place, 1, totals[1])
    store(place, 2, totals[2])
    store(place, 3, totals[3])


@jit
def _write_out(totals: Any, panels: Any, rows: Any, vectors: Any, out: Any, out_columns: Any) -> None:
    """Totals of tiles, some rows of a panel each, to a row of the output for every vector."""
    for vector in range(vectors):
        panel, place = vector // PANEL_VECTORS, vector % PANEL_VECTORS
        for row in range(rows):
            tile = totals + TILE_BYTES * (row // TILE_ROWS * panels + panel)
            store_f32(out, out_columns * vector + row, peek_f32(tile, 16 * (row % TILE_ROWS) + place))


def _make_products(take: Any, group: int, has_lows: bool) -> Any:
    multiply = _make_multiply(group, has_lows)

    @jit
    def products(job: Any) -> None:
        blocks, rows, columns = number(job, 0), number(job, 1), number(job, 2)
        codes, scales, sums, vectors = number(job, 3), number(job, 4), number(job, 5), number(job, 6)
        out, out_columns, scratch = number(job, 7), number(job, 8), number(job, 9)
        panels = (vectors + PANEL_VECTORS - 1) // PANEL_VECTORS
        words, own_scales = scratch, scratch + WORD_ROW_BYTES * MOST_ROWS
        own_lows = own_scales + SCALE_ROW_BYTES * MOST_ROWS
        totals = own_lows + SCALE_ROW_BYTES * MOST_ROWS
        tiles = (rows + TILE_ROWS - 1) // TILE_ROWS
        for i in range(TILE_ROWS * tiles * panels):
            store(totals, i, f32x16(0.0))
        for first in range(0, columns, STEP):
            stop = min(first + STEP, columns)
            take(blocks, rows, columns, first, stop, words, own_scales, own_lows)
            for panel in range(panels):
                block = columns // 32 * panel + first // 32
                for tile in range(tiles):
                    multiply(
                        words + TILE_ROWS * WORD_ROW_BYTES * tile,
                        own_scales + TILE_ROWS * SCALE_ROW_BYTES * tile,
                        own_lows + TILE_ROWS * SCALE_ROW_BYTES * tile,
                        codes + PANEL_BLOCK_BYTES * block,
                        scales + 64 * block,
                        sums + 64 * block,
                        number(job, 10),
                        (stop - first) // group,
                        totals + TILE_BYTES * (tile * panels + panel),
                    )
        _write_out(totals, panels, rows, vectors, out, out_columns)

    return products


_q4_0 = _make_products(take_q4_0, 32, has_lows=False)
_q8_0 = _make_products(take_q8_0, 32, has_lows=False)
_q4_k = _make_products(take_q4_k, 32, has_lows=True)
_q6_k = _make_products(take_q6_k, 16, has_lows=False)


def q4_0(job: int) -> None:
    """``job`` is the address of int64 numbers: blocks, rows, columns of the weight; codes, scales, sums, number of the
    vectors; out and its columns; scratch; and pairs of elements with one scale, which is given here because loops
    of a known small count would be unrolled until the registers do not suffice. So for the others.
    """
    _q4_0(job)


def q8_0(job: int) -> None:
    _q8_0(job)


def q4_k(job: int) -> None:
    _q4_k(job)


def q6_k(job: int) -> None:
    _q6_k(job)
