"""32 i16 side by side: loaded, spread, multiplied in pairs and summed in sixteen lanes of i32, exactly.

Products of neighbours are added while they are multiplied: on x86 that is one instruction, and does twice as much as
one of f32. Where registers have 256 bits, each vector is two of them.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from lbrx.devices.cpu.simd.emit import (
    call_llvm,
    load_at,
    reduced,
    same,
    shuffled,
    spread,
    store_at,
    vector_of,
    widened_bf16,
)
from lbrx.devices.cpu.simd.instruction import I32, I64, Builder, Value, instruction
from lbrx.devices.cpu.simd.vectors import Vector

I16X16: Any = Vector("i16", 16)
I16X32: Any = Vector("i16", 32)
I32X8: Any = Vector("i32", 8)
I32X16: Any = Vector("i32", 16)


def pairwise_products(builder: Builder, left: Value, right: Value) -> Value:
    """Lanes of i16 multiplied, neighbours added: half as many i32. One instruction on x86."""
    wide = vector_of(I32, left)
    products = builder.mul(builder.sext(left, wide), builder.sext(right, wide))
    return builder.add(*(shuffled(builder, products, products, range(at, wide.count, 2)) for at in (0, 1)))


@instruction(I16X32(types.int64))
def load_panel(builder: Builder, address: Value) -> Value:
    """Two elements of sixteen vectors."""
    return load_at(builder, address, I16X32.llvm)


@instruction(I16X32(types.int64))
def spread_pair(builder: Builder, address: Value) -> Value:
    """The two i16 at an address, sixteen times."""
    return builder.bitcast(spread(builder, load_at(builder, address, I32), I32X16.llvm), I16X32.llvm)


@instruction(I32X16(I16X32, I16X32, I32X16))
def add_products(builder: Builder, left: Value, right: Value, sums: Value) -> Value:
    """Sixteen sums, each plus two products of neighbours."""
    return builder.add(sums, pairwise_products(builder, left, right))


def bf16_products(builder: Builder, left: Value, right: Value, sums: Value) -> Value:
    """Sixteen sums of f32, each plus two products of neighbours in bf16: for processors that have an instruction."""
    return call_llvm(builder, "llvm.x86.avx512bf16.dpbf16ps.512", sums.type, [sums, left, right])


def _transposed(builder: Builder, rows: list[Value]) -> list[Value]:
    """Eight vectors of eight lanes as their columns: pairs of lanes, of twos and of fours are swapped."""
    for step in (1, 2, 4):
        low = [lane if not lane & step else 8 + lane - step for lane in range(8)]
        high = [lane + step if not lane & step else 8 + lane for lane in range(8)]
        columns = list(rows)
        for first in (row for row in range(8) if not row & step):
            for row, lanes in ((first, low), (first + step, high)):
                columns[row] = shuffled(builder, rows[first], rows[first + step], lanes)
        rows = columns
    return rows


@instruction(types.void(*[types.int64] * 5))
def transpose_eight(
    builder: Builder, source: Value, stride: Value, out: Value, second_out: Value, out_stride: Value
) -> None:
    """Eight rows of eight i32 as columns, four at each of two addresses; strides are in bytes."""

    def row_address(base: Value, row_bytes: Value, number: int) -> Value:
        return builder.add(base, builder.mul(row_bytes, ir.Constant(I64, number)))

    rows = [load_at(builder, row_address(source, stride, row), I32X8.llvm) for row in range(8)]
    for number, column in enumerate(_transposed(builder, rows)):
        store_at(builder, column, row_address((out, second_out)[number // 4], out_stride, number % 4))


# -- magnitudes of bf16 ------------------------------------------------------------------------------------------------


def _larger(builder: Builder, left: Value, right: Value) -> Value:
    return builder.select(builder.icmp_unsigned(">", left, right), left, right)


@instruction(I16X16(types.int64, I16X16))
def largest_magnitude(builder: Builder, address: Value, before: Value) -> Value:
    """The larger bits, lane by lane, of sixteen bf16 without their signs and of those before."""
    words = load_at(builder, address, I16X16.llvm)
    return _larger(builder, builder.and_(words, same(I16X16.llvm, 0x7FFF)), before)


@instruction(types.int64(I16X16))
def largest_i16(builder: Builder, values: Value) -> Value:
    """The largest of sixteen i16 that are not negative."""
    return builder.zext(reduced(builder, values, lambda low, high: _larger(builder, low, high)), I64)


@instruction(lambda like, _bits: like(like, I16X16))
def bf16_values(builder: Builder, _like: Value, bits: Value) -> Value:
    """Sixteen i16 as bf16, widened to f32."""
    return widened_bf16(builder, bits)
