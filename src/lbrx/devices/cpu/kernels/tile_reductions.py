"""Reductions of a tile: a few thousand bytes on the stack that a pass has filled with values.

The vector width is written into the code, not chosen by the compiler, so that sums come out the same on every
instruction set: sixteen lanes, combined as a tree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from lbrx.devices.cpu.simd import memory as simd_memory
from lbrx.devices.cpu.simd.emit import call_llvm, pointer, reduced, same, shuffled
from lbrx.devices.cpu.simd.instruction import DOUBLE, FLOAT, HALF, I8, I32, I64, Builder, Value, instruction
from lbrx.engine.block_sizes import LANES, TILE

IN_TILES = {"bf16": "f32", "f16": "f32"}  # inputs that a tile holds in a wider type
_ELEMENTS = {name: memory for name, (memory, _) in simd_memory.ELEMENTS.items()}
_FLOATS, _SUMS = ("f32", "f64"), ("sum", "sumsq", "dot")
_F32_ROW = ir.VectorType(FLOAT, LANES)
_PREFETCHED_BYTES = 8192
_ROWS_AHEAD = {"bf16": 8, "f16": TILE // LANES}  # f16 is widened where f32 is: that goes better one after the other


def _widened(builder: Builder, value: Value, element: str, wide: Any) -> Value:
    if _ELEMENTS[element] is wide:
        return value
    vector = ir.VectorType(wide, LANES)
    return builder.fpext(value, vector) if element in _FLOATS else builder.sext(value, vector)


def _combine(builder: Builder, reduction: str, element: str, left: Value, right: Value) -> Value:
    if reduction in _SUMS:
        return builder.fadd(left, right) if element in _FLOATS else builder.add(left, right)
    if element in _FLOATS:  # one instruction; NaN is watched apart, see _larger_bits
        return builder.select(builder.fcmp_ordered(">" if reduction == "max" else "<", left, right), left, right)
    return _extreme(builder, reduction, left, right)


def _extreme(builder: Builder, reduction: str, left: Value, right: Value) -> Value:
    """The larger or the smaller of integers, lane by lane."""
    suffix = f"v{left.type.count}i{left.type.element.width}"
    return call_llvm(builder, f"llvm.s{reduction}.{suffix}", left.type, [left, right])


def _larger_bits(builder: Builder, seen: Value, value: Value) -> Value:
    """The larger of the bits of magnitudes, lane by lane: those of NaN are above all others.

    Comparing values with themselves gives single bits, which LLVM packs and unpacks at every step.
    """
    without_sign = same(seen.type, (1 << (seen.type.element.width - 1)) - 1)
    return _extreme(builder, "max", seen, builder.and_(builder.bitcast(value, seen.type), without_sign))


def _has_nan(builder: Builder, seen: Value) -> Value:
    bits, flags = seen.type, ir.IntType(seen.type.count)
    infinity = 0x7FF << 52 if bits.element is I64 else 0xFF << 23
    is_nan = builder.icmp_signed(">", seen, same(bits, infinity))
    return builder.icmp_unsigned("!=", builder.bitcast(is_nan, flags), flags(0))


def _loaded(builder: Builder, base: Value, index: Value, memory: str, wide: Any) -> Value:
    """A row of lanes from a tile, or of an input where it lies, widened to the accumulator's type."""
    if memory == "bf16":
        return _widened(builder, _bf16_pairs(builder, base, index), "f32", wide)
    element = IN_TILES.get(memory, memory)
    vector = ir.VectorType(HALF if memory == "f16" else _ELEMENTS[element], LANES)
    value = builder.load(pointer(builder, base, vector, index), align=1)
    return _widened(builder, builder.fpext(value, _F32_ROW) if memory == "f16" else value, element, wide)


def prefetch(builder: Builder, base: Value, index: Value, memory: str) -> None:
    """Ask for what comes later: converting and comparing leave the processor too few loads in flight."""
    row_bytes = LANES * (2 if memory in IN_TILES else 8 if _ELEMENTS[memory] in (DOUBLE, I64) else 4)
    row = pointer(builder, base, I8, builder.mul(index, ir.Constant(I64, row_bytes)))
    simd_memory.prefetch(builder, builder.gep(row, [ir.Constant(I64, _PREFETCHED_BYTES)]))


def _bf16_pairs(builder: Builder, base: Value, index: Value) -> Value:
    """Sixteen bf16 as float32, the even ones before the odd ones: that needs no shuffles."""
    words = ir.VectorType(I32, LANES // 2)
    pairs = builder.load(pointer(builder, base, words, index), align=1)
    even, odd = builder.shl(pairs, same(words, 16)), builder.and_(pairs, same(words, -65536))
    return builder.bitcast(shuffled(builder, even, odd, range(LANES)), _F32_ROW)


class Aside:
    """A tile of halves as float32 on the stack, which is filled some rows ahead of those that are read.

    A float32 is widened as it is loaded; one that is in a register already has to be moved to another first.
    """

    def __init__(self, builder: Builder, base: Value, rows: Value, memory: str) -> None:
        self.base, self.memory = base, memory
        self.last = builder.sub(rows, ir.Constant(I64, 1))
        with builder.goto_entry_block():
            self.tile = builder.alloca(ir.ArrayType(_F32_ROW, TILE // LANES))
            self.tile.align = 64
        self.address = builder.ptrtoint(self.tile, I64)
        with cgutils.for_range(builder, ir.Constant(I64, _ROWS_AHEAD[memory] + 1)) as loop:
            self._put(builder, loop.index)

    def fill(self, builder: Builder, index: Value) -> None:
        """Widen the row that comes some rows after this one."""
        if _ROWS_AHEAD[self.memory] < TILE // LANES:
            self._put(builder, builder.add(index, ir.Constant(I64, _ROWS_AHEAD[self.memory])))

    def _put(self, builder: Builder, index: Value) -> None:
        """Widen a row; after the last one that one again."""
        row = builder.select(builder.icmp_signed("<", index, self.last), index, self.last)
        values = _loaded(builder, self.base, row, self.memory, FLOAT)
        builder.store(values, builder.gep(self.tile, [ir.Constant(I32, 0), row]))


def _times(builder: Builder, left: Value, right: Value, element: str) -> Value:
    return builder.fmul(left, right) if element in _FLOATS else builder.mul(left, right)


def add_product(builder: Builder, total: Value, left: Value, right: Value) -> Value:
    """total + left * right. The product of two widened float32 is exact, so fusing the two changes nothing."""
    return call_llvm(builder, f"llvm.fmuladd.v{total.type.count}f64", total.type, [left, right, total])


def reduced_lanes(builder: Builder, reduction: str, element: str, value: Value) -> Value:
    return reduced(builder, value, lambda left, right: _combine(builder, reduction, element, left, right))


Step = Callable[[Value, Sequence[Value]], Sequence[Value]]


def loop_over_rows(builder: Builder, rows: Value, starts: Sequence[Value], step: Step) -> list[Value]:
    """Values that ``step`` makes anew for the rows 1 to ``rows`` - 1, from what they were before."""
    one, entry = ir.Constant(I64, 1), builder.block
    header, loop, end = (builder.append_basic_block(f"tile.{name}") for name in ("next", "loop", "end"))
    builder.branch(header)
    builder.position_at_end(header)
    index, *values = (builder.phi(start.type) for start in (one, *starts))
    builder.cbranch(builder.icmp_signed("<", index, rows), loop, end)
    builder.position_at_end(loop)
    grown = step(index, values)
    following = builder.add(index, one)
    builder.branch(header)
    for phi, before, after in zip((index, *values), (one, *starts), (following, *grown), strict=True):
        phi.add_incoming(before, entry)
        phi.add_incoming(after, loop)
    builder.position_at_end(end)
    return values


def _make_tile_reduction(reduction: str, memory: str) -> Any:
    """``tile_<reduction>_<memory>(first, second, rows) -> f64 or i64`` over 1 row of lanes to a whole tile of them.

    The addresses are of tiles or, where a sink takes an input as it is, of the input itself: the result is the same.
    """
    element = IN_TILES.get(memory, memory)
    wide = _ELEMENTS[element] if reduction not in _SUMS else DOUBLE if element in _FLOATS else I64
    is_put_aside = memory in IN_TILES and wide is DOUBLE
    read = element if is_put_aside else memory
    register = types.float64 if element in _FLOATS else types.int64
    watches_nan = reduction in ("min", "max") and element in _FLOATS

    def factors(builder: Builder, addresses: Sequence[Value], index: Value) -> tuple[Value, ...]:
        values = tuple(_loaded(builder, address, index, read, wide) for address in addresses)
        return values * 2 if reduction == "sumsq" else values

    def item(builder: Builder, parts: tuple[Value, ...]) -> Value:
        return parts[0] if len(parts) == 1 else _times(builder, parts[0], parts[1], element)

    @instruction(register(types.int64, types.int64, types.int64))
    def reduce(builder: Builder, first: Value, second: Value, rows: Value) -> Value:
        inputs = (first, second) if reduction == "dot" else (first,)
        aside = [Aside(builder, base, rows, memory) for base in inputs] if is_put_aside else []
        addresses = [each.address for each in aside] or inputs

        def step(index: Value, values: Sequence[Value]) -> Sequence[Value]:
            total, nans = values
            if memory in IN_TILES or watches_nan:
                for base in inputs:
                    prefetch(builder, base, index, memory)
            for each in aside:
                each.fill(builder, index)
            parts = factors(builder, addresses, index)
            if len(parts) == 2 and element == "f32":
                grown = add_product(builder, total, *parts)
            else:
                grown = _combine(builder, reduction, element, total, item(builder, parts))
            return grown, _larger_bits(builder, nans, parts[0]) if watches_nan else nans

        start = item(builder, factors(builder, addresses, ir.Constant(I64, 0)))
        nans = same(ir.VectorType(I64 if wide is DOUBLE else I32, LANES), 0)
        if watches_nan:
            nans = _larger_bits(builder, nans, start)
        total, nans = loop_over_rows(builder, rows, (start, nans), step)
        result = reduced_lanes(builder, reduction, element, total)
        if watches_nan:
            result = builder.select(_has_nan(builder, nans), ir.Constant(wide, float("nan")), result)
        if element == "f32" and wide is FLOAT:
            return builder.fpext(result, DOUBLE)
        return builder.sext(result, I64) if element == "i32" and wide is I32 else result

    return reduce


REDUCTION_FUNCTIONS: dict[str, Any] = {
    f"tile_{reduction}_{memory}": _make_tile_reduction(reduction, memory)
    for reduction in ("sum", "sumsq", "dot", "min", "max")
    for memory in (*_ELEMENTS, *IN_TILES)
}
