"""Rows of quantized blocks times many vectors of 8 bits, as sums of products of bytes.

x86 multiplies bytes without signs by bytes with signs. Vectors are coded as in `coded_vectors`, 128 is added to their
codes, and they lie in panels of 16: of every 32 elements first elements 0 to 3 of all 16 vectors, then 4 to 7, and so
on. Rows are decoded some elements at a time into i8 that stay in the cache: see `quantized_rows_i8`. Sums begin with
-128 times the sum of the codes of a row. Results have the bits of `gemm_i16` with codes of 8 bits.
"""

from __future__ import annotations

from typing import Any

from numba import types

from lbrx.devices.cpu.kernels.gemm_i16 import (
    PANEL_VECTORS,
    TOTAL_BYTES,
    TOTAL_PANEL_BYTES,
    ask_for,
    make_code_panels,
    take_codec,
    write_out,
)
from lbrx.devices.cpu.kernels.gemm_i16_tile import joined, make_add_scaled, sums_of
from lbrx.devices.cpu.kernels.quantized_rows_i8 import LOWS_BYTES, MOST_ROWS
from lbrx.devices.cpu.kernels.quantized_rows_i16 import SCALE_ROW_BYTES, STEP
from lbrx.devices.cpu.simd.coded_dot import add_byte_products
from lbrx.devices.cpu.simd.elements import load_i64 as number
from lbrx.devices.cpu.simd.emit import load_at, spread
from lbrx.devices.cpu.simd.i16 import I32X16
from lbrx.devices.cpu.simd.instruction import I32, Builder, Value, instruction, jit
from lbrx.devices.cpu.simd.memory import stack_bytes
from lbrx.devices.cpu.simd.processor import HAS_512_BITS
from lbrx.devices.cpu.simd.vectors import f32x16, store

PANEL_BLOCK_BYTES = 512  # the codes of a block of 32 elements in a panel
ROWS, PANELS = (8, 2) if HAS_512_BITS else (4, 1)
"""That are multiplied at a time: sums take half of the registers."""
DECODED_BYTES = MOST_ROWS * STEP + 3 * LOWS_BYTES

code_panels, code_panels_by_halves = (make_code_panels(parts, 8, in_bytes=True) for parts in (1, 2))


def _make_first_sums(panels: int) -> Any:
    @instruction(sums_of(ROWS, panels)(types.int64))
    def first_sums(builder: Builder, starts: Value) -> Value:
        """What sums of each row begin with."""
        loaded = [load_at(builder, starts, I32, SCALE_ROW_BYTES * row) for row in range(ROWS)]
        return joined(builder, [spread(builder, each, I32X16.llvm) for each in loaded for _ in range(panels)])

    return first_sums


def _make_add_quad(panels: int) -> Any:
    @instruction(sums_of(ROWS, panels)(types.int64, types.int64, types.int64, sums_of(ROWS, panels)))
    def add_quad(builder: Builder, rows: Value, x: Value, panel_bytes: Value, sums: Value) -> Value:
        """Four elements of each row, times those of each panel, added to their sums."""
        starts = [x, builder.add(x, panel_bytes)][:panels]
        vectors = [load_at(builder, start, I32X16.llvm) for start in starts]
        grown = []
        for row in range(ROWS):
            elements = spread(builder, load_at(builder, rows, I32, STEP * row), I32X16.llvm)
            for panel, own in enumerate(vectors):
                total = builder.extract_value(sums, panels * row + panel)
                grown.append(add_byte_products(builder, total, own, elements))
        return joined(builder, grown)

    return add_quad


def _make_multiply(group: int, has_lows: bool, panels: int) -> Any:
    """The products of ROWS rows with some panels, which lie so many blocks apart, scaled and added to totals.

    Rows have a scale, and a value to take off, for every ``group`` elements: 32 or 16.
    """
    per_block = 32 // group
    per_sum = 1 if has_lows else per_block
    first_sums, add_quad = _make_first_sums(panels), _make_add_quad(panels)
    add_scaled = make_add_scaled(has_lows, ROWS, panels)

    @jit
    def multiply(
        codes: Any,
        scales: Any,
        lows: Any,
        x: Any,
        x_scales: Any,
        x_sums: Any,
        blocks: Any,
        quads: Any,
        groups: Any,
        out: Any,
    ) -> None:
        panel_bytes, scale_bytes, sum_bytes = PANEL_BLOCK_BYTES * blocks, 64 * blocks, 64 * per_block * blocks
        for group_number in range(groups):
            own_scales, own_lows = scales + 4 * group_number, lows + 4 * group_number
            sums = first_sums(own_lows + LOWS_BYTES)
            for quad in range(quads):
                sums = add_quad(codes + 4 * quad, x + 64 * quad, panel_bytes, sums)
            of_vectors = x_scales + 64 * (group_number // per_block), scale_bytes
            more_of_vectors = x_sums + 64 * (group_number // per_sum), sum_bytes
            add_scaled(sums, own_scales, own_lows, *of_vectors, *more_of_vectors, out, TOTAL_PANEL_BYTES)
            codes += group
            x += 16 * group

    return multiply


def make_gemm(take: Any, group: int, has_lows: bool) -> Any:
    """A function for weights that ``take`` decodes; see `quantized_rows_i8`."""
    multiply, multiply_last = _make_multiply(group, has_lows, PANELS), _make_multiply(group, has_lows, 1)
    sum_bytes = 64 * 32 // group if has_lows else 64

    @jit
    def tile(job: Any, row_bytes: Any, blocks: Any, rows: Any, out: Any, row_codes: Any, totals: Any) -> None:
        columns, vectors, quads = number(job, 1), number(job, 5), number(job, 8)
        panels = (vectors + PANEL_VECTORS - 1) // PANEL_VECTORS
        scales = row_codes + STEP * MOST_ROWS
        lows = scales + LOWS_BYTES
        step_bytes, x_blocks = row_bytes * STEP // columns, columns // 32
        for i in range(MOST_ROWS * panels):
            store(totals, i, f32x16(0.0))
        for first in range(0, columns, STEP):
            stop = min(first + STEP, columns)
            take(job, blocks, rows, columns, first, stop, row_codes, scales, lows)
            following = blocks + (first // STEP + 1) * step_bytes
            if stop == columns:
                following = blocks + number(job, 9) * row_bytes
            for panel in range(0, panels, PANELS):
                count = min(PANELS, panels - panel)
                ask_for(following, row_bytes, rows * panel // panels, rows * (panel + count) // panels, step_bytes)
                block = x_blocks * panel + first // 32
                x, x_scales = number(job, 2) + PANEL_BLOCK_BYTES * block, number(job, 3) + 64 * block
                own = x, x_scales, number(job, 4) + sum_bytes * block, x_blocks, quads, (stop - first) // group
                for row in range(0, rows, ROWS):
                    codes, offset = row_codes + STEP * row, SCALE_ROW_BYTES * row
                    target = totals + TOTAL_PANEL_BYTES * panel + 64 * row
                    if count == PANELS:
                        multiply(codes, scales + offset, lows + offset, *own, target)
                    else:
                        multiply_last(codes, scales + offset, lows + offset, *own, target)
        write_out(totals, rows, vectors, out, number(job, 7))

    def gemm(job: int, row_bytes: int, first: int, stop: int) -> None:
        """Rows ``first`` to ``stop`` - 1 times all vectors.

        ``job`` is that of `gemm_i16`, with the quarters of elements with one scale in place of their pairs.
        """
        row_codes, totals = stack_bytes(DECODED_BYTES), stack_bytes(TOTAL_BYTES)
        for row in range(first, stop, MOST_ROWS):
            blocks, out = number(job, 0) + row_bytes * row, number(job, 6) + 4 * row
            tile(job, row_bytes, blocks, min(MOST_ROWS, stop - row), out, row_codes, totals)

    return gemm


by_32, by_32_with_lows = make_gemm(take_codec, 32, has_lows=False), make_gemm(take_codec, 32, has_lows=True)
by_16, by_16_with_lows = make_gemm(take_codec, 16, has_lows=False), make_gemm(take_codec, 16, has_lows=True)
"""For all codecs with a scale for every 32 or 16 elements."""
