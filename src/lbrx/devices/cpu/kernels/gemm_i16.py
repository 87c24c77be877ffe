"""Rows of quantized blocks times many vectors, as sums of products of i16.

Vectors are coded as in `coded_vectors`, and laid out in panels of 16: of every 32 elements first elements 0 and 1 of
all 16 vectors, then 2 and 3, and so on. Rows are decoded some elements at a time into i16 that stay in the cache,
and multiplied four or eight at a time with a panel: see `quantized_rows_i16`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.kernels.gemm_i16_tile import (
    FOURS,
    add_pair,
    add_wide_pair,
    four_sums,
    make_add_scaled,
    wide_sums,
)
from lbrx.devices.cpu.kernels.quantized_rows_i16 import (
    CODE_ROW_BYTES,
    SCALE_ROW_BYTES,
    STEP,
)
from lbrx.devices.cpu.simd.calls import make_call
from lbrx.devices.cpu.simd.coded_dot import TOPS
from lbrx.devices.cpu.simd.elements import load_i64 as number
from lbrx.devices.cpu.simd.elements import store_f32
from lbrx.devices.cpu.simd.f32 import ROUNDER, absolute, fused
from lbrx.devices.cpu.simd.i16 import transpose_eight
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.memory import peek_f32, prefetch_line, stack_bytes
from lbrx.devices.cpu.simd.processor import HAS_512_BITS
from lbrx.devices.cpu.simd.shuffles import first_half, second_half
from lbrx.devices.cpu.simd.vectors import (
    bits_of,
    f32x16,
    f32x32,
    lane_max,
    lane_sum,
    load,
    splat,
    store,
    store_i16,
    store_u8,
    to_f32,
)

TINY = np.float32(2.0**-100)
TAKE = 10  # of the numbers of a job
call_take = make_call(10)
ZERO = np.float32(0.0)
PANEL_VECTORS = 16
PANEL_BLOCK_BYTES = 1024  # the codes of a block of 32 elements in a panel
MOST_ROWS = 64  # that are decoded at a time
TILE_ROWS = 4 * FOURS
DECODED_BYTES = MOST_ROWS * (CODE_ROW_BYTES + 2 * SCALE_ROW_BYTES)
TOTAL_PANEL_BYTES = 64 * MOST_ROWS
TOTAL_BYTES = TOTAL_PANEL_BYTES * 32  # of 512 vectors


def make_code_panels(parts: int, bits: int, in_bytes: bool = False) -> Any:
    """``code_panels``, with so many sums for every block, and codes of so many bits.

    Codes are words, or bytes to which 128 is added: of every 32 elements first four of all vectors, then the next four.
    """
    top, code_bytes = TOPS[bits], 1 if in_bytes else 2

    @jit
    def code_panel(x: Any, vectors: Any, columns: Any, codes: Any, scales: Any, sums: Any) -> Any:
        """Code up to 16 vectors. Returns 0 if all numbers are finite, else NaN."""
        row_codes = stack_bytes(512)
        watched = f32x32(0.0)
        for first in range(0, vectors, 8):
            for block in range(columns // 32):
                for row in range(min(8, vectors - first)):
                    values = load(f32x32(0.0), x + 4 * columns * (first + row), block)
                    watched = watched + values * ZERO
                    largest = lane_max(absolute(values))
                    is_tiny = largest < TINY
                    rounded = fused(values, splat(values, ZERO if is_tiny else top / largest), splat(values, ROUNDER))
                    scale = ZERO if is_tiny else largest / top
                    if in_bytes:
                        store_u8(row_codes + 32 * row, bits_of(rounded) + 128)
                    else:
                        store_i16(row_codes + 64 * row, bits_of(rounded))
                    store_f32(scales, 16 * block + first + row, scale)
                    coded, vector = rounded - ROUNDER, first + row
                    if parts == 2:
                        store_f32(sums, 32 * block + vector, lane_sum(first_half(coded)) * scale)
                        store_f32(sums, 32 * block + 16 + vector, lane_sum(second_half(coded)) * scale)
                    else:
                        store_f32(sums, 16 * block + vector, lane_sum(coded) * scale)
                out = codes + 512 * code_bytes * block + 4 * first
                transpose_eight(row_codes, 32 * code_bytes, out, out + 256, 64)
                if not in_bytes:
                    transpose_eight(row_codes + 32, 64, out + 512, out + 768, 64)
        return lane_sum(watched)

    def code(job: int, columns: int, first: int, stop: int) -> None:
        """Code vectors of so many columns as panels ``first`` to ``stop`` - 1; tiny blocks become zeros.

        ``job`` is the address of int64 numbers: the vectors and how many there are; where codes, scales and the sums
        of blocks, or of their halves, as coded go; and the address of an f32 that is set to NaN if a number is not
        finite.
        """
        x, vectors = number(job, 0), number(job, 1)
        codes, scales, sums, watched = number(job, 2), number(job, 3), number(job, 4), number(job, 5)
        for panel in range(first, stop):
            start, block = PANEL_VECTORS * panel, columns // 32 * panel
            zero = code_panel(
                x + 4 * columns * start,
                min(PANEL_VECTORS, vectors - start),
                columns,
                codes + 512 * code_bytes * block,
                scales + 64 * block,
                sums + 64 * parts * block,
            )
            if zero != ZERO:
                store_f32(watched, 0, zero)

    return code


code_panels, code_panels_by_halves = make_code_panels(1, 16), make_code_panels(2, 16)
code_panels_in_8_bits, code_panels_by_halves_in_8_bits = make_code_panels(1, 8), make_code_panels(2, 8)


def _make_multiply(group: int, has_lows: bool) -> Any:
    """The sums of products of some rows with a panel, scaled and added up in f32.

    Rows have a scale, and a value to take off, for every ``group`` elements: 32 or 16.
    """
    per_block = 32 // group
    per_sum = 1 if has_lows else per_block

    @jit
    def add_scaled(total: Any, sums: Any, scale: Any, low: Any, x_scale: Any, x_sum: Any) -> Any:
        grown = fused(to_f32(sums), x_scale * peek_f32(scale, 0), total)
        if has_lows:
            grown = fused(splat(total, -peek_f32(low, 0)), x_sum, grown)
        return grown

    @jit
    def add_four(totals: Any, sums: Any, scale: Any, low: Any, x_scale: Any, x_sum: Any) -> Any:
        return (
            add_scaled(totals[0], sums[0], scale, low, x_scale, x_sum),
            add_scaled(totals[1], sums[1], scale + SCALE_ROW_BYTES, low + SCALE_ROW_BYTES, x_scale, x_sum),
            add_scaled(totals[2], sums[2], scale + 2 * SCALE_ROW_BYTES, low + 2 * SCALE_ROW_BYTES, x_scale, x_sum),
            add_scaled(totals[3], sums[3], scale + 3 * SCALE_ROW_BYTES, low + 3 * SCALE_ROW_BYTES, x_scale, x_sum),
        )

    @jit
    def next_codes(codes: Any, group_number: Any) -> Any:
        return codes + (2 * group if group_number % per_block < per_block - 1 else 256 - 2 * group * (per_block - 1))

    @jit
    def multiply(
        codes: Any, scales: Any, lows: Any, x: Any, x_scales: Any, x_sums: Any, pairs: Any, groups: Any, out: Any
    ) -> None:
        like = f32x16(0.0)
        totals = load_four(out)
        more_totals = load_four(out + 256) if FOURS == 2 else totals
        for group_number in range(groups):
            sums, more_sums = four_sums(), four_sums()
            for pair in range(pairs):
                sums = add_pair(codes + 4 * pair, x + 64 * pair, sums)
                if FOURS == 2:
                    more_sums = add_pair(codes + 4 * CODE_ROW_BYTES + 4 * pair, x + 64 * pair, more_sums)
            block, offset = group_number // per_block, 4 * group_number
            x_scale, x_sum = load(like, x_scales, block), load(like, x_sums, group_number // per_sum)
            totals = add_four(totals, sums, scales + offset, lows + offset, x_scale, x_sum)
            if FOURS == 2:
                offset += 4 * SCALE_ROW_BYTES
                more_totals = add_four(more_totals, more_sums, scales + offset, lows + offset, x_scale, x_sum)
            codes = next_codes(codes, group_number)
            x += 32 * group
        store_four(out, totals)
        if FOURS == 2:
            store_four(out + 256, more_totals)

    return multiply


def _make_wide_multiply(group: int, has_lows: bool) -> Any:
    """What `_make_multiply` makes, for eight rows and two panels, which lie so many bytes apart."""
    per_block = 32 // group
    per_sum = 1 if has_lows else per_block
    add_scaled = make_add_scaled(has_lows)

    @jit
    def multiply(
        codes: Any,
        scales: Any,
        lows: Any,
        x: Any,
        x_scales: Any,
        x_sums: Any,
        blocks: Any,
        pairs: Any,
        groups: Any,
        out: Any,
    ) -> None:
        panel_bytes, scale_bytes, sum_bytes = PANEL_BLOCK_BYTES * blocks, 64 * blocks, 64 * per_block * blocks
        for group_number in range(groups):
            sums = wide_sums()
            for pair in range(pairs):
                sums = add_wide_pair(codes + 4 * pair, x + 64 * pair, panel_bytes, sums)
            own_scales, own_sums = x_scales + 64 * (group_number // per_block), x_sums + 64 * (group_number // per_sum)
            offset = 4 * group_number
            of_vectors = own_scales, scale_bytes, own_sums, sum_bytes
            add_scaled(sums, scales + offset, lows + offset, *of_vectors, out, TOTAL_PANEL_BYTES)
            codes += 2 * group if group_number % per_block < per_block - 1 else 256 - 2 * group * (per_block - 1)
            x += 32 * group

    return multiply


@jit
def load_four(address: Any) -> Any:
    like = f32x16(0.0)
    return load(like, address, 0), load(like, address, 1), load(like, address, 2), load(like, address, 3)


@jit
def store_four(address: Any, totals: Any) -> None:
    store(address, 0, totals[0])
    store(address, 1, totals[1])
    store(address, 2, totals[2])
    store(address, 3, totals[3])


@jit
def write_out(totals: Any, rows: Any, vectors: Any, out: Any, out_columns: Any) -> None:
    """Totals of panels to a row of the output for every vector: eight times eight together as long as there are."""
    even_rows, even_vectors = rows // 8 * 8, vectors // 8 * 8
    for vector in range(0, even_vectors, 8):
        panel = totals + TOTAL_PANEL_BYTES * (vector // PANEL_VECTORS) + 4 * (vector % PANEL_VECTORS)
        for row in range(0, even_rows, 8):
            target = out + 4 * (out_columns * vector + row)
            transpose_eight(panel + 64 * row, 64, target, target + 16 * out_columns, 4 * out_columns)
    for vector in range(vectors):
        panel = totals + TOTAL_PANEL_BYTES * (vector // PANEL_VECTORS)
        for row in range(even_rows if vector < even_vectors else 0, rows):
            store_f32(out, out_columns * vector + row, peek_f32(panel, 16 * row + vector % PANEL_VECTORS))


@jit
def ask_for(blocks: Any, row_bytes: Any, first: Any, stop: Any, nbytes: Any) -> None:
    """Let bytes of rows come nearer that are decoded next."""
    for row in range(first, stop):
        for line in range(0, nbytes + 64, 64):
            prefetch_line(blocks + row_bytes * row + line)


def make_gemm(take: Any, group: int, has_lows: bool) -> Any:
    """A function for weights that ``take`` decodes; see `quantized_rows_i16`."""
    multiply, wide_multiply = _make_multiply(group, has_lows), _make_wide_multiply(group, has_lows)
    sum_bytes = 64 * 32 // group if has_lows else 64

    @jit
    def tile_gemm(job: Any, row_bytes: Any, blocks: Any, rows: Any, out: Any, row_codes: Any, totals: Any) -> None:
        columns, codes, scales, sums = number(job, 1), number(job, 2), number(job, 3), number(job, 4)
        vectors, out_columns, pairs = number(job, 5), number(job, 7), number(job, 8)
        panels = (vectors + PANEL_VECTORS - 1) // PANEL_VECTORS
        own_scales = row_codes + CODE_ROW_BYTES * MOST_ROWS
        own_lows = own_scales + SCALE_ROW_BYTES * MOST_ROWS
        step_bytes = row_bytes * STEP // columns
        for i in range(MOST_ROWS * panels):
            store(totals, i, f32x16(0.0))
        for first in range(0, columns, STEP):
            stop = min(first + STEP, columns)
            take(job, blocks, rows, columns, first, stop, row_codes, own_scales, own_lows)
            next_blocks = blocks + (first // STEP + 1) * step_bytes
            if stop == columns:
                next_blocks = blocks + number(job, 9) * row_bytes
            wide_panels = panels // 2 * 2 if HAS_512_BITS else 0
            for panel in range(0, wide_panels, 2):
                part = rows * panel // panels, rows * (panel + 2) // panels
                ask_for(next_blocks, row_bytes, *part, step_bytes)
                block = columns // 32 * panel + first // 32
                for row in range(0, rows, 8):
                    wide_multiply(
                        row_codes + CODE_ROW_BYTES * row,
                        own_scales + SCALE_ROW_BYTES * row,
                        own_lows + SCALE_ROW_BYTES * row,
                        codes + PANEL_BLOCK_BYTES * block,
                        scales + 64 * block,
                        sums + sum_bytes * block,
                        columns // 32,
                        pairs,
                        (stop - first) // group,
                        totals + TOTAL_PANEL_BYTES * panel + 64 * row,
                    )
            for panel in range(wide_panels, panels):
                part = rows * panel // panels, rows * (panel + 1) // panels
                ask_for(next_blocks, row_bytes, *part, step_bytes)
                block = columns // 32 * panel + first // 32
                for row in range(0, rows, TILE_ROWS):
                    multiply(
                        row_codes + CODE_ROW_BYTES * row,
                        own_scales + SCALE_ROW_BYTES * row,
                        own_lows + SCALE_ROW_BYTES * row,
                        codes + PANEL_BLOCK_BYTES * block,
                        scales + 64 * block,
                        sums + sum_bytes * block,
                        pairs,
                        (stop - first) // group,
                        totals + TOTAL_PANEL_BYTES * panel + 64 * row,
                    )
        write_out(totals, rows, vectors, out, out_columns)

    def gemm(job: int, row_bytes: int, first: int, stop: int) -> None:
        """Rows ``first`` to ``stop`` - 1 times all vectors.

        ``job`` is the address of int64 numbers: blocks and columns of the weight; codes, scales, sums, number of the
        vectors; out and its columns; pairs of elements with one scale, which is given here because loops of a known
        small count would be unrolled until the registers do not suffice; and how many rows further on a thread goes
        on, as others have taken those between. Behind them lies what a ``take`` function needs.
        """
        row_codes, totals = stack_bytes(DECODED_BYTES), stack_bytes(TOTAL_BYTES)
        for row in range(first, stop, MOST_ROWS):
            blocks, out = number(job, 0) + row_bytes * row, number(job, 6) + 4 * row
            tile_gemm(job, row_bytes, blocks, min(MOST_ROWS, stop - row), out, row_codes, totals)

    return gemm


@jit
def take_codec(
    job: Any, blocks: Any, rows: Any, columns: Any, first: Any, stop: Any, codes: Any, scales: Any, lows: Any
) -> None:
    """Decode rows by the function of `quantized_rows_i16` at the address behind the job. It cannot fail."""
    results = stack_bytes(16)
    given = blocks, rows, columns, first, stop, codes, scales, lows
    call_take(number(job, TAKE), (results, results + 8, *given))


by_32, by_32_with_lows = make_gemm(take_codec, 32, has_lows=False), make_gemm(take_codec, 32, has_lows=True)
by_16, by_16_with_lows = make_gemm(take_codec, 16, has_lows=False), make_gemm(take_codec, 16, has_lows=True)
"""For all codecs with a scale for every 32 or 16 elements."""
