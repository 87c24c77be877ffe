"""Rows of i16 times panels of sixteen vectors: the inner steps of products of i16.

The i16 of four rows lie together, 32 of each in turn; a panel has two elements of all its vectors in 64 bytes. Where
there are 32 registers of 512 bits, eight rows are multiplied with two panels: sixteen registers hold sums, and each
load is used several times. Otherwise four rows are multiplied with one panel.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from lbrx.devices.cpu.kernels.quantized_rows_i16 import CODE_ROW_BYTES, SCALE_ROW_BYTES
from lbrx.devices.cpu.simd.emit import call_llvm, load_at, same, spread, store_at
from lbrx.devices.cpu.simd.i16 import I16X32, I32X16, add_products, load_panel, pairwise_products, spread_pair
from lbrx.devices.cpu.simd.instruction import FLOAT, I32, I64, Builder, Value, instruction, jit
from lbrx.devices.cpu.simd.processor import HAS_512_BITS
from lbrx.devices.cpu.simd.vectors import Vector, i32x16

FOURS = 2 if HAS_512_BITS else 1
"""How many times four rows are multiplied at a time: more where registers are larger and more."""

ROWS, PANELS = 8, 2
F32X16: Any = Vector("f32", 16)


def sums_of(rows: int, panels: int, element: str = "i32") -> Any:
    """The type of sums: sixteen lanes for each row and panel."""
    return types.UniTuple(I32X16.of(element), rows * panels)  # type: ignore[no-untyped-call]


SUMS = sums_of(ROWS, PANELS)


@jit
def four_sums() -> Any:
    """Zeros for four rows."""
    return i32x16(0), i32x16(0), i32x16(0), i32x16(0)


@jit
def add_pair(rows: Any, x: Any, sums: Any) -> Any:
    """Two elements of four rows, times those of a panel, added to their sums."""
    a, b, c, d = sums
    numbers = load_panel(x)
    a = add_products(spread_pair(rows), numbers, a)
    b = add_products(spread_pair(rows + 64), numbers, b)
    c = add_products(spread_pair(rows + 128), numbers, c)
    d = add_products(spread_pair(rows + 192), numbers, d)
    return a, b, c, d


# -- eight rows and two panels -----------------------------------------------------------------------------------------


def joined(builder: Builder, vectors: list[Value]) -> Value:
    """Vectors of one type as a tuple."""
    tuple_of_all = ir.Constant(ir.ArrayType(vectors[0].type, len(vectors)), ir.Undefined)
    for at, vector in enumerate(vectors):
        tuple_of_all = builder.insert_value(tuple_of_all, vector, at)
    return tuple_of_all


@instruction(SUMS())
def wide_sums(builder: Builder) -> Value:
    """Zeros for eight rows and two panels."""
    return joined(builder, [same(I32X16.llvm, 0)] * (ROWS * PANELS))


@instruction(SUMS(types.int64, types.int64, types.int64, SUMS))
def add_wide_pair(builder: Builder, rows: Value, x: Value, panel_bytes: Value, sums: Value) -> Value:
    """Two elements of eight rows, times those of two panels, added to their sums."""
    panels = [load_at(builder, at, I16X32.llvm) for at in (x, builder.add(x, panel_bytes))]
    grown = []
    for row in range(ROWS):
        pair = load_at(builder, rows, I32, 4 * CODE_ROW_BYTES * (row // 4) + 64 * (row % 4))
        elements = builder.bitcast(spread(builder, pair, I32X16.llvm), I16X32.llvm)
        for panel, numbers in enumerate(panels):
            products = pairwise_products(builder, elements, numbers)
            grown.append(builder.add(builder.extract_value(sums, PANELS * row + panel), products))
    return joined(builder, grown)


def _fused(builder: Builder, left: Value, right: Value, added: Value) -> Value:
    return call_llvm(builder, "llvm.fma.v16f32", F32X16.llvm, [left, right, added])


def make_add_scaled(
    has_lows: bool, rows: int = ROWS, panels: int = PANELS, scale_row_bytes: int = SCALE_ROW_BYTES
) -> Any:
    """A function that scales sums of a group and adds them to totals of f32, less the lows times sums of vectors."""
    addresses = [types.int64] * 8

    @instruction(types.void(sums_of(rows, panels), *addresses))
    def add_scaled(
        builder: Builder,
        sums: Value,
        scales: Value,
        lows: Value,
        x_scales: Value,
        x_scale_bytes: Value,
        x_sums: Value,
        x_sum_bytes: Value,
        totals: Value,
        total_bytes: Value,
    ) -> None:
        vector = F32X16.llvm
        builder.fence("seq_cst", "singlethread")  # keeps totals in memory: registers would not suffice
        for panel in range(panels):
            skipped = I64(panel)
            own_scales = load_at(builder, builder.add(x_scales, builder.mul(x_scale_bytes, skipped)), vector)
            own_sums = load_at(builder, builder.add(x_sums, builder.mul(x_sum_bytes, skipped)), vector)
            own_totals = builder.add(totals, builder.mul(total_bytes, skipped))
            for row in range(rows):
                scale, low = (load_at(builder, at, FLOAT, SCALE_ROW_BYTES * row) for at in (scales, lows))
                products = builder.sitofp(builder.extract_value(sums, panels * row + panel), vector)
                factor = builder.fmul(own_scales, spread(builder, scale, vector))
                grown = _fused(builder, products, factor, load_at(builder, own_totals, vector, 64 * row))
                if has_lows:
                    grown = _fused(builder, spread(builder, builder.fneg(low), vector), own_sums, grown)
                store_at(builder, grown, builder.add(own_totals, I64(64 * row)))

    return add_scaled
