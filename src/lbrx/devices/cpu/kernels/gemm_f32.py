"""Rows of f32, f16 or bf16 times many vectors of f32, summed in f32.

Vectors lie in panels of 32: one element of all of them, then the next. Rows are widened to f32 some elements at a time,
and multiplied twelve at a time with a panel, so that 24 registers hold sums. A sum is a chain of fused operations over
256 elements, added to those before: it does not depend on the other rows and vectors, nor on the processor.
"""

from __future__ import annotations

from typing import Any

from numba import types

from lbrx.devices.cpu.kernels.gemm_i16 import ask_for
from lbrx.devices.cpu.kernels.gemm_i16_tile import joined
from lbrx.devices.cpu.simd.elements import load_bf16 as load_one_bf16
from lbrx.devices.cpu.simd.elements import load_f16 as load_one_f16
from lbrx.devices.cpu.simd.elements import load_f32, store_f32
from lbrx.devices.cpu.simd.elements import load_i64 as number
from lbrx.devices.cpu.simd.emit import call_llvm, load_at, same, spread, store_at
from lbrx.devices.cpu.simd.f32 import load_bf16, load_f16
from lbrx.devices.cpu.simd.i16 import transpose_eight
from lbrx.devices.cpu.simd.instruction import FLOAT, I64, Builder, Value, instruction, jit
from lbrx.devices.cpu.simd.memory import peek_f32, stack_bytes
from lbrx.devices.cpu.simd.vectors import Vector, f32x8, f32x16, load, store

PANEL_VECTORS, PANEL_BYTES = 32, 128
STEP = 256  # elements of a row that are widened at a time
ROW_BYTES = 4 * STEP + 64  # rows begin in different sets of the cache
TILE_ROWS, MOST_ROWS = 12, 48
ROWS_BYTES = MOST_ROWS * ROW_BYTES
TOTAL_PANEL_BYTES = PANEL_BYTES * MOST_ROWS
TOTAL_BYTES = TOTAL_PANEL_BYTES * 16  # of 512 vectors

F32X16: Any = Vector("f32", 16)
SUMS: Any = types.UniTuple(F32X16, 2 * TILE_ROWS)  # type: ignore[no-untyped-call]


@instruction(SUMS())
def zero_sums(builder: Builder) -> Value:
    """Two vectors for each row of a tile."""
    return joined(builder, [same(F32X16.llvm, 0.0)] * (2 * TILE_ROWS))


@instruction(types.void(types.int64, SUMS))
def add_to_totals(builder: Builder, totals: Value, sums: Value) -> None:
    for at in range(2 * TILE_ROWS):
        before = load_at(builder, totals, F32X16.llvm, 64 * at)
        store_at(builder, builder.fadd(before, builder.extract_value(sums, at)), builder.add(totals, I64(64 * at)))


@instruction(SUMS(types.int64, types.int64, SUMS))
def add_element(builder: Builder, rows: Value, x: Value, sums: Value) -> Value:
    """Sums, each plus an element of its row times that of a vector."""
    halves = [load_at(builder, x, F32X16.llvm, offset) for offset in (0, 64)]
    grown = []
    for row in range(TILE_ROWS):
        element = spread(builder, load_at(builder, rows, FLOAT, ROW_BYTES * row), F32X16.llvm)
        for half, values in enumerate(halves):
            total = builder.extract_value(sums, 2 * row + half)
            grown.append(call_llvm(builder, "llvm.fma.v16f32", F32X16.llvm, [element, values, total]))
    return joined(builder, grown)


@jit
def _pack_eight(x: Any, vectors: Any, columns: Any, out: Any) -> None:
    """Up to eight vectors as a quarter of a panel; those that are missing are copies of the last one."""
    buffer = stack_bytes(256)
    for piece in range(columns // 8):
        target = out + 8 * PANEL_BYTES * piece
        if vectors == 8:
            transpose_eight(x + 32 * piece, 4 * columns, target, target + 4 * PANEL_BYTES, PANEL_BYTES)
        else:
            for vector in range(8):
                store(buffer, vector, load(f32x8(0.0), x + 4 * columns * min(vector, vectors - 1), piece))
            transpose_eight(buffer, 32, target, target + 4 * PANEL_BYTES, PANEL_BYTES)
    for vector in range(8):
        row = x + 4 * columns * min(vector, vectors - 1)
        for column in range(columns // 8 * 8, columns):
            store_f32(out, 32 * column + vector, load_f32(row, column))


def pack_panels(job: int, columns: int, first: int, stop: int) -> None:
    """Vectors of so many columns as panels ``first`` to ``stop`` - 1.

    ``job`` is the address of int64 numbers: the vectors, how many there are, and where panels go.
    """
    x, vectors, panels = number(job, 0), number(job, 1), number(job, 2)
    for panel in range(first, stop):
        for quarter in range(4):
            start = min(PANEL_VECTORS * panel + 8 * quarter, vectors - 1)
            out = panels + PANEL_BYTES * columns * panel + 32 * quarter
            _pack_eight(x + 4 * columns * start, min(8, vectors - start), columns, out)


@jit
def _multiply(rows: Any, x: Any, count: Any, totals: Any) -> None:
    sums = zero_sums()
    for i in range(count):
        sums = add_element(rows + 4 * i, x + PANEL_BYTES * i, sums)
    add_to_totals(totals, sums)


@jit
def _write_out(totals: Any, rows: Any, vectors: Any, out: Any, out_columns: Any) -> None:
    """Totals of panels to a row of the output for every vector: eight times eight together as long as there are."""
    even_rows, even_vectors = rows // 8 * 8, vectors // 8 * 8
    for vector in range(0, even_vectors, 8):
        panel = totals + TOTAL_PANEL_BYTES * (vector // PANEL_VECTORS) + 4 * (vector % PANEL_VECTORS)
        for row in range(0, even_rows, 8):
            target = out + 4 * (out_columns * vector + row)
            transpose_eight(panel + PANEL_BYTES * row, PANEL_BYTES, target, target + 16 * out_columns, 4 * out_columns)
    for vector in range(vectors):
        panel = totals + TOTAL_PANEL_BYTES * (vector // PANEL_VECTORS)
        for row in range(even_rows if vector < even_vectors else 0, rows):
            store_f32(out, out_columns * vector + row, peek_f32(panel, 32 * row + vector % PANEL_VECTORS))


def _make_gemm(load_vector: Any, load_one: Any, element_bytes: int) -> Any:
    @jit
    def widen(rows: Any, row_bytes: Any, count: Any, first: Any, stop: Any, out: Any) -> None:
        """Elements ``first`` to ``stop`` - 1 of some rows as f32."""
        length = stop - first
        for row in range(count):
            source, target = rows + row_bytes * row + element_bytes * first, out + ROW_BYTES * row
            for i in range(length // 16):
                store(target, i, load_vector(f32x16(0.0), source, i))
            for i in range(length // 16 * 16, length):
                store_f32(target, i, load_one(source, i))

    @jit
    def tile(job: Any, row_bytes: Any, rows: Any, count: Any, out: Any, widened: Any, totals: Any) -> None:
        columns, x, vectors = number(job, 1), number(job, 2), number(job, 3)
        panels = (vectors + PANEL_VECTORS - 1) // PANEL_VECTORS
        for panel in range(panels):
            for i in range(2 * MOST_ROWS):
                store(totals + TOTAL_PANEL_BYTES * panel, i, f32x16(0.0))
        for first in range(0, columns, STEP):
            stop = min(first + STEP, columns)
            widen(rows, row_bytes, count, first, stop, widened)
            following = rows + element_bytes * stop if stop < columns else rows + row_bytes * number(job, 6)
            for panel in range(panels):
                part = count * panel // panels, count * (panel + 1) // panels
                ask_for(following, row_bytes, *part, element_bytes * STEP)
                numbers = x + PANEL_BYTES * (columns * panel + first)
                for row in range(0, count, TILE_ROWS):
                    sums = totals + TOTAL_PANEL_BYTES * panel + PANEL_BYTES * row
                    _multiply(widened + ROW_BYTES * row, numbers, stop - first, sums)
        _write_out(totals, count, vectors, out, number(job, 5))

    def multiply(job: int, row_bytes: int, first: int, stop: int) -> None:
        """Rows ``first`` to ``stop`` - 1 times all vectors.

        ``job`` is the address of int64 numbers: rows and columns of the weight; panels and number of the vectors; out
        and its columns; and how many rows further on a thread goes on.
        """
        widened, totals = stack_bytes(ROWS_BYTES), stack_bytes(TOTAL_BYTES)
        for i in range(ROWS_BYTES // 64):
            store(widened, i, f32x16(0.0))  # rows of a tile that are missing
        for row in range(first, stop, MOST_ROWS):
            rows, out = number(job, 0) + row_bytes * row, number(job, 4) + 4 * row
            tile(job, row_bytes, rows, min(MOST_ROWS, stop - row), out, widened, totals)

    return multiply


f32 = _make_gemm(load, load_f32, 4)
f16, bf16 = _make_gemm(load_f16, load_one_f16, 2), _make_gemm(load_bf16, load_one_bf16, 2)
