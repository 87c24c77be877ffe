"""Rows of bf16 times many vectors of bf16, summed in f32 by instructions for just that.

Vectors lie in panels of 16, two elements of all of them after the other, and rows as in `quantized_rows_i16`. A sum
takes its elements in order, two at a time; the instruction takes numbers below 2**-126 for zeros.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from lbrx.devices.cpu.kernels.gemm_i16 import (
    MOST_ROWS,
    PANEL_BLOCK_BYTES,
    PANEL_VECTORS,
    TOTAL_BYTES,
    TOTAL_PANEL_BYTES,
    ask_for,
    write_out,
)
from lbrx.devices.cpu.kernels.gemm_i16_tile import F32X16, ROWS, joined, sums_of
from lbrx.devices.cpu.kernels.quantized_rows_i16 import CODE_ROW_BYTES, STEP
from lbrx.devices.cpu.simd.elements import load_i64 as number
from lbrx.devices.cpu.simd.emit import load_at, spread, store_at
from lbrx.devices.cpu.simd.i16 import I32X16, bf16_products, transpose_eight
from lbrx.devices.cpu.simd.instruction import I32, I64, Builder, Value, instruction, jit
from lbrx.devices.cpu.simd.memory import poke_i32, stack_bytes
from lbrx.devices.cpu.simd.vectors import (
    bits_of,
    f32x8,
    f32x16,
    f32x32,
    lane_max,
    load,
    maximum,
    store,
    store_i16,
    to_i32,
)

LEAST_INFINITE = 0x7F7F8000  # the magnitude from which on rounding an f32 to bf16 gives infinity, as bits
PACKED_BYTES = MOST_ROWS * CODE_ROW_BYTES


@jit
def _pack_eight(x: Any, vectors: Any, columns: Any, out: Any) -> None:
    """Up to eight vectors as half of a panel; those that are missing are copies of the last one."""
    buffer = stack_bytes(256)
    for piece in range(columns // 16):
        target = out + 512 * piece
        if vectors == 8:
            transpose_eight(x + 32 * piece, 2 * columns, target, target + 256, 64)
        else:
            for vector in range(8):
                own = x + 2 * columns * min(vector, vectors - 1)
                store(buffer, vector, load(f32x8(0.0), own, piece))
            transpose_eight(buffer, 32, target, target + 256, 64)


def pack_panels(job: int, columns: int, first: int, stop: int) -> None:
    """Vectors of so many columns as panels ``first`` to ``stop`` - 1.

    ``job`` is the address of int64 numbers: the vectors, how many there are, and where panels go.
    """
    x, vectors, panels = number(job, 0), number(job, 1), number(job, 2)
    for panel in range(first, stop):
        for half in range(2):
            start = min(PANEL_VECTORS * panel + 8 * half, vectors - 1)
            out = panels + PANEL_BLOCK_BYTES * (columns // 32) * panel + 32 * half
            _pack_eight(x + 2 * columns * start, min(8, vectors - start), columns, out)


def round_rows(job: int, columns: int, first: int, stop: int) -> None:
    """Rows ``first`` to ``stop`` - 1 of f32, of whole blocks of 32 columns, rounded to bf16.

    ``job`` is the address of int64 numbers: the rows, the results, and the address of an i32 that is set to 1 if a
    result is not finite.
    """
    x, out, watched = number(job, 0), number(job, 1), number(job, 2)
    blocks, largest = columns // 32, to_i32(f32x32(0.0))
    for block in range(blocks * first, blocks * stop):
        bits = bits_of(load(f32x32(0.0), x, block))
        rounded = bits + ((bits >> 16) & 1) + 0x7FFF
        store_i16(out + 64 * block, rounded >> 16)
        largest = maximum(largest, bits & 0x7FFFFFFF)
    if lane_max(largest) >= LEAST_INFINITE:
        poke_i32(watched, 0, np.int32(1))


@jit
def _take(rows: Any, count: Any, columns: Any, first: Any, stop: Any, packed: Any) -> None:
    """Elements ``first`` to ``stop`` - 1 of some rows, four rows together."""
    for row in range(count):
        source = rows + 2 * (columns * row + first)
        out = packed + 4 * CODE_ROW_BYTES * (row // 4) + 64 * (row % 4)
        for block in range((stop - first) // 32):
            store(out + 256 * block, 0, load(f32x16(0.0), source, block))


def _make_multiply(panels: int) -> Any:
    """Eight rows times some panels, which lie so many blocks apart, added to totals."""
    sums_type = sums_of(ROWS, panels, "f32")

    def addresses(builder: Builder, totals: Value) -> list[Value]:
        """Of the sums: all panels of a row, then the next row."""
        starts = [I64(TOTAL_PANEL_BYTES * panel + 64 * row) for row in range(ROWS) for panel in range(panels)]
        return [builder.add(totals, start) for start in starts]

    @instruction(sums_type(types.int64))
    def load_totals(builder: Builder, totals: Value) -> Value:
        return joined(builder, [load_at(builder, each, F32X16.llvm) for each in addresses(builder, totals)])

    @instruction(types.void(types.int64, sums_type))
    def store_totals(builder: Builder, totals: Value, sums: Value) -> None:
        for number_of_sum, each in enumerate(addresses(builder, totals)):
            store_at(builder, builder.extract_value(sums, number_of_sum), each)

    @instruction(sums_type(types.int64, types.int64, types.int64, sums_type))
    def add_pair(builder: Builder, packed: Value, x: Value, panel_bytes: Value, sums: Value) -> Value:
        """Two elements of eight rows, times those of the panels, added to their sums."""
        vectors = [load_at(builder, at, I32X16.llvm) for at in (x, builder.add(x, panel_bytes))[:panels]]
        grown = []
        for row in range(ROWS):
            pair = load_at(builder, packed, I32, 4 * CODE_ROW_BYTES * (row // 4) + 64 * (row % 4))
            elements = spread(builder, pair, I32X16.llvm)
            for panel, own in enumerate(vectors):
                total = builder.extract_value(sums, panels * row + panel)
                grown.append(bf16_products(builder, own, elements, total))
        return joined(builder, grown)

    @jit
    def multiply(packed: Any, x: Any, panel_bytes: Any, blocks: Any, pairs: Any, out: Any) -> None:
        sums = load_totals(out)
        for _block in range(blocks):
            for pair in range(pairs):
                sums = add_pair(packed + 4 * pair, x + 64 * pair, panel_bytes, sums)
            packed += 256
            x += PANEL_BLOCK_BYTES
        store_totals(out, sums)

    return multiply


_multiply_two_panels, _multiply_panel = _make_multiply(2), _make_multiply(1)


@jit
def _tile(job: Any, rows: Any, count: Any, out: Any, packed: Any, totals: Any) -> None:
    columns, x, vectors = number(job, 1), number(job, 2), number(job, 3)
    panels = (vectors + PANEL_VECTORS - 1) // PANEL_VECTORS
    for i in range(MOST_ROWS * panels):
        store(totals, i, f32x16(0.0))
    for first in range(0, columns, STEP):
        stop = min(first + STEP, columns)
        _take(rows, count, columns, first, stop, packed)
        following = rows + 2 * stop if stop < columns else rows + 2 * columns * number(job, 7)
        for panel in range(0, panels, 2):
            ask_for(following, 2 * columns, count * panel // panels, count * min(panel + 2, panels) // panels, 2 * STEP)
            numbers = x + PANEL_BLOCK_BYTES * (columns // 32 * panel + first // 32)
            given = PANEL_BLOCK_BYTES * (columns // 32), (stop - first) // 32, number(job, 6)
            for row in range(0, count, ROWS):
                own, sums = packed + CODE_ROW_BYTES * row, totals + TOTAL_PANEL_BYTES * panel + 64 * row
                if panel + 1 < panels:
                    _multiply_two_panels(own, numbers, *given, sums)
                else:
                    _multiply_panel(own, numbers, *given, sums)
    write_out(totals, count, vectors, out, number(job, 5))


def multiply(job: int, row_bytes: int, first: int, stop: int) -> None:
    """Rows ``first`` to ``stop`` - 1 times all vectors.

    ``job`` is the address of int64 numbers: rows and columns of the weight; panels and number of the vectors; out and
    its columns; the number 16, from here so that a loop is not unrolled; and how many rows further on a thread goes on.
    """
    packed, totals = stack_bytes(PACKED_BYTES), stack_bytes(TOTAL_BYTES)
    for row in range(first, stop, MOST_ROWS):
        count = min(MOST_ROWS, stop - row)
        _tile(job, number(job, 0) + row_bytes * row, count, number(job, 4) + 4 * row, packed, totals)
