"""Scales of groups, as f32: numbers that lie in the blocks of a group, or that are coded themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types

from lbrx.devices.cpu.simd.emit import load_at, same, spread, vector_of
from lbrx.devices.cpu.simd.instruction import FLOAT, HALF, I16, I32, Builder, Value, instruction
from lbrx.devices.cpu.simd.vectors import Vector

F32X8: Any = Vector("f32", 8)
F32X16: Any = Vector("f32", 16)


def gathered(builder: Builder, address: Value, element: Any, offsets: Sequence[int]) -> Value:
    """Numbers at some offsets."""
    vector = ir.Constant(ir.VectorType(element, len(offsets)), ir.Undefined)
    for lane, offset in enumerate(offsets):
        vector = builder.insert_element(vector, load_at(builder, address, element, offset), ir.Constant(I32, lane))
    return vector


def widened_halves(builder: Builder, bits: Value) -> Value:
    """The f16 with these bits as f32."""
    return builder.fpext(builder.bitcast(bits, vector_of(HALF, bits)), vector_of(FLOAT, bits))


def load_half(builder: Builder, address: Value, offset: int) -> Value:
    """An f16 as f32."""
    return builder.fpext(builder.bitcast(load_at(builder, address, I16, offset), HALF), FLOAT)


def times_half(builder: Builder, codes: Value, address: Value, offset: int) -> Value:
    """Codes of scales times an f16 of the block."""
    values = builder.sitofp(codes, vector_of(FLOAT, codes))
    return builder.fmul(values, spread(builder, load_half(builder, address, offset), values.type))


def make_halves_of_blocks(block_bytes: int, at: int = 0, factor: float = 1.0) -> Any:
    """An f16 of each of eight blocks."""

    @instruction(F32X8(types.int64))
    def halves(builder: Builder, stored: Value) -> Value:
        bits = gathered(builder, stored, I16, [block_bytes * block + at for block in range(8)])
        values = widened_halves(builder, bits)
        return values if factor == 1 else builder.fmul(values, same(values.type, factor))

    return halves
