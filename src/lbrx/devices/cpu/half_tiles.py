"""Sums, and sums of squares, of whole tiles of f16 and bf16 where they lie.

Widening to f64 is what such a sum takes longest for. So two values, or two squares, are added in f32 first: values of
half types are so short that this is nearly always exact, and else within 2**-24 of the pair. A square of bf16 may be
out of the range of f32; tiles where the largest is, or is so small that others might be, are summed in f64 as before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from lbrx.devices.cpu.constants import LANES
from lbrx.devices.cpu.elements import DOUBLE, FLOAT, I64
from lbrx.devices.cpu.tiles import TILE_FUNCTIONS, loaded, prefetch, reduced_lanes

Builder = Any
Value = Any
_I16 = ir.IntType(16)
_BITS = ir.VectorType(_I16, LANES)
_SAFE_BITS = (77 << 7, 189 << 7)  # magnitudes of bf16 from 2**-50 to 2**62


def _loop(builder: Builder, stop: Value, firsts: list[Value], body: Callable[..., list[Value]]) -> list[Value]:
    """``values = body(builder, index, values)`` for every second index from 0 on; the last values."""
    entry = builder.block
    header, inside, end = (builder.append_basic_block(name) for name in ("half.next", "half.loop", "half.end"))
    builder.branch(header)
    builder.position_at_end(header)
    index, values = builder.phi(I64), [builder.phi(first.type) for first in firsts]
    builder.cbranch(builder.icmp_signed("<", index, stop), inside, end)
    builder.position_at_end(inside)
    grown = body(builder, index, values)
    following = builder.add(index, ir.Constant(I64, 2))
    builder.branch(header)
    pairs = ((index, ir.Constant(I64, 0), following), *zip(values, firsts, grown, strict=True))
    for phi, before, after in pairs:
        phi.add_incoming(before, entry)
        phi.add_incoming(after, inside)
    builder.position_at_end(end)
    return values


def _pair(builder: Builder, kind: str, first: Value, second: Value) -> Value:
    """The sum of values, or of their squares, in f32."""
    if kind == "sum":
        return builder.fadd(first, second)
    name, vector = f"llvm.fma.v{LANES}f32", first.type
    fma = builder.module.globals.get(name) or ir.Function(builder.module, ir.FunctionType(vector, [vector] * 3), name)
    return builder.call(fma, [second, second, builder.fmul(first, first)])


def _larger_magnitudes(builder: Builder, address: Value, row: Value, seen: Value) -> Value:
    """The larger bits, lane by lane, of a row of bf16 without signs and of what was seen before."""
    pointer = builder.gep(builder.inttoptr(address, _BITS.as_pointer()), [row])
    magnitudes = builder.and_(builder.load(pointer, align=1), ir.Constant(_BITS, [0x7FFF] * LANES))
    return builder.select(builder.icmp_signed(">", magnitudes, seen), magnitudes, seen)


def _are_safe(builder: Builder, seen: Value) -> Value:
    """Whether squares of the largest of these bf16, and of what counts beside it, are in the range of f32."""
    bits = ir.IntType(LANES)
    low, high = (ir.Constant(_BITS, [bound] * LANES) for bound in _SAFE_BITS)
    is_large, is_too_large = (
        builder.icmp_unsigned("!=", builder.bitcast(mask, bits), ir.Constant(bits, 0))
        for mask in (builder.icmp_signed(">=", seen, low), builder.icmp_signed(">", seen, high))
    )
    return builder.and_(is_large, builder.not_(is_too_large))


def _make_paired_sum(kind: str, memory: str) -> Any:
    """``paired_<kind>_<memory>(address, unused, vectors) -> f64``, over an even number of rows of lanes.

    Where squares of bf16 may be out of range, the result is NaN.
    """
    wide = ir.VectorType(DOUBLE, LANES)
    is_watched = kind == "sumsq" and memory == "bf16"

    def paired(_context: Any, _address: Any, _unused: Any, _vectors: Any) -> Any:
        def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
            def add_pair(builder: Builder, index: Value, values: list[Value]) -> list[Value]:
                total, *seen = values
                rows = (index, builder.add(index, ir.Constant(I64, 1)))
                for row in rows:
                    prefetch(builder, args[0], row, memory)
                    seen = [_larger_magnitudes(builder, args[0], row, before) for before in seen]
                first, second = (loaded(builder, args[0], row, memory, FLOAT) for row in rows)
                return [builder.fadd(total, builder.fpext(_pair(builder, kind, first, second), wide)), *seen]

            firsts = [ir.Constant(wide, [0.0] * LANES)] + [ir.Constant(_BITS, [0] * LANES)] * is_watched
            total, *seen = _loop(builder, args[2], firsts, add_pair)
            result = reduced_lanes(builder, "sum", "f32", total)
            if is_watched:
                result = builder.select(_are_safe(builder, seen[0]), result, ir.Constant(DOUBLE, float("nan")))
            return result

        return types.float64(*[types.int64] * 3), generate

    paired.__name__ = f"paired_{kind}_{memory}"
    return intrinsic(paired)


_paired_sumsq_bf16 = _make_paired_sum("sumsq", "bf16")
_wide_sumsq_bf16 = TILE_FUNCTIONS["tile_sumsq_bf16"]


@njit
def sumsq_bf16(address: Any, unused: Any, vectors: Any) -> Any:
    found = _paired_sumsq_bf16(address, unused, vectors)
    return found if found == found else _wide_sumsq_bf16(address, unused, vectors)


HALF_TILE_FUNCTIONS: dict[str, Any] = {
    "whole_sum_f16": _make_paired_sum("sum", "f16"),
    "whole_sum_bf16": _make_paired_sum("sum", "bf16"),
    "whole_sumsq_f16": _make_paired_sum("sumsq", "f16"),
    "whole_sumsq_bf16": sumsq_bf16,
}
