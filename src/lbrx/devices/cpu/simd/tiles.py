"""Reductions of a tile: a few thousand bytes on the stack that a pass has filled with values.

The vector width is written into the code, not chosen by the compiler, so that sums come out the same on every
instruction set: sixteen lanes, combined as a tree.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from lbrx.devices.cpu.simd.elements import DOUBLE, FLOAT, HALF, I8, I32, I64
from lbrx.engine.block_sizes import LANES, TILE

Builder = Any
Value = Any

_FLOATS = {"f32": FLOAT, "f64": DOUBLE}
IN_TILES = {"bf16": "f32", "f16": "f32"}  # inputs that a tile holds in a wider type
_ELEMENTS = {"f32": FLOAT, "f64": DOUBLE, "i32": I32, "i64": I64}
_PREFETCHED_BYTES = 8192
_ROWS_AHEAD = {"bf16": 8, "f16": TILE // LANES}  # f16 is widened where f32 is: that goes better one after the other
_REGISTERS: dict[str, Any] = {"f32": types.float32, "f64": types.float64, "i32": types.int32, "i64": types.int64}


@intrinsic(prefer_literal=True)
def stack_bytes(_context: Any, nbytes: Any) -> Any:
    """The address of so many bytes (a literal) on the stack."""
    size = nbytes.literal_value

    def generate(_target: Any, builder: Builder, _signature: Any, _args: Any) -> Value:
        with builder.goto_entry_block():
            memory = builder.alloca(ir.ArrayType(I64, size // 8))
            memory.align = 64
        return builder.ptrtoint(memory, I64)

    return types.int64(nbytes), generate


def _accumulator(kind: str, element: str) -> Any:
    if kind in ("sum", "sumsq", "dot"):
        return DOUBLE if element in _FLOATS else I64
    return _ELEMENTS[element]


def _widened(builder: Builder, value: Value, element: str, wide: Any) -> Value:
    if _ELEMENTS[element] is wide:
        return value
    vector = ir.VectorType(wide, LANES)
    return builder.fpext(value, vector) if element in _FLOATS else builder.sext(value, vector)


def _combine(builder: Builder, kind: str, element: str, left: Value, right: Value) -> Value:
    if kind in ("sum", "sumsq", "dot"):
        return builder.fadd(left, right) if element in _FLOATS else builder.add(left, right)
    if element in _FLOATS:  # one instruction; NaN is watched apart, see _larger_bits
        return builder.select(builder.fcmp_ordered(">" if kind == "max" else "<", left, right), left, right)
    return builder.call(_vector_function(builder, f"llvm.s{kind}", left.type), [left, right])


def _larger_bits(builder: Builder, seen: Value, value: Value) -> Value:
    """The larger of the bits of magnitudes, lane by lane: those of NaN are above all others.

    Comparing values with themselves gives single bits, which LLVM packs and unpacks at every step.
    """
    bits = seen.type
    is_wide = bits.element is I64
    without_sign = ir.Constant(bits, [(1 << 63) - 1 if is_wide else (1 << 31) - 1] * bits.count)
    magnitude = builder.and_(builder.bitcast(value, bits), without_sign)
    return builder.call(_vector_function(builder, "llvm.smax", bits), [seen, magnitude])


def _has_nan(builder: Builder, seen: Value) -> Value:
    bits = seen.type
    infinity = 0x7FF << 52 if bits.element is I64 else 0xFF << 23
    is_nan = builder.icmp_signed(">", seen, ir.Constant(bits, [infinity] * bits.count))
    return builder.icmp_unsigned("!=", builder.bitcast(is_nan, ir.IntType(bits.count)), ir.IntType(bits.count)(0))


def _vector_function(builder: Builder, name: str, vector: Any) -> Any:
    suffix = {FLOAT: "f32", DOUBLE: "f64", I32: "i32", I64: "i64"}[vector.element]
    full = f"{name}.v{vector.count}{suffix}"
    return builder.module.globals.get(full) or ir.Function(
        builder.module, ir.FunctionType(vector, [vector, vector]), full
    )


def _loaded(builder: Builder, base: Value, index: Value, memory: str, wide: Any) -> Value:
    """A row of lanes from a tile, or of an input where it lies, widened to the accumulator's type."""
    if memory == "bf16":
        return _widened(builder, _bf16_pairs(builder, base, index), "f32", wide)
    element = IN_TILES.get(memory, memory)
    vector = ir.VectorType(HALF if memory == "f16" else _ELEMENTS[element], LANES)
    pointer = builder.gep(builder.inttoptr(base, vector.as_pointer()), [index])
    value = builder.load(pointer, align=1)
    if memory == "f16":
        value = builder.fpext(value, ir.VectorType(FLOAT, LANES))
    return _widened(builder, value, element, wide)


def prefetch(builder: Builder, base: Value, index: Value, memory: str) -> None:
    """Ask for what comes later: converting and comparing leave the processor too few loads in flight."""
    row_bytes = LANES * (2 if memory in IN_TILES else 8 if _ELEMENTS[memory] in (DOUBLE, I64) else 4)
    place = builder.gep(builder.inttoptr(base, I8.as_pointer()), [builder.mul(index, ir.Constant(I64, row_bytes))])
    ahead = builder.gep(place, [ir.Constant(I64, _PREFETCHED_BYTES)])
    kind = ir.FunctionType(ir.VoidType(), [I8.as_pointer(), I32, I32, I32])
    name = "llvm.prefetch.p0"
    function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    reading, keep, data = (ir.Constant(I32, number) for number in (0, 3, 1))
    builder.call(function, [ahead, reading, keep, data])


def _bf16_pairs(builder: Builder, base: Value, index: Value) -> Value:
    """Sixteen bf16 as float32, the even ones before the odd ones: that needs no shuffles."""
    half = LANES // 2
    words = ir.VectorType(I32, half)
    pairs = builder.load(builder.gep(builder.inttoptr(base, words.as_pointer()), [index]), align=1)
    even = builder.shl(pairs, ir.Constant(words, [16] * half))
    odd = builder.and_(pairs, ir.Constant(words, [-65536] * half))
    both = builder.shuffle_vector(even, odd, ir.Constant(ir.VectorType(I32, LANES), list(range(LANES))))
    return builder.bitcast(both, ir.VectorType(FLOAT, LANES))


class Aside:
    """A tile of halves as float32 on the stack, which is filled some rows ahead of those that are read.

    A float32 is widened as it is loaded; one that is in a register already has to be moved to another first.
    """

    def __init__(self, builder: Builder, base: Value, rows: Value, memory: str) -> None:
        self.base, self.memory = base, memory
        self.last = builder.sub(rows, ir.Constant(I64, 1))
        with builder.goto_entry_block():
            self.tile = builder.alloca(ir.ArrayType(ir.VectorType(FLOAT, LANES), TILE // LANES))
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
    name = f"llvm.fmuladd.v{total.type.count}f64"
    function = builder.module.globals.get(name) or ir.Function(
        builder.module, ir.FunctionType(total.type, [total.type] * 3), name
    )
    return builder.call(function, [left, right, total])


def reduced_lanes(builder: Builder, kind: str, element: str, value: Value) -> Value:
    count = LANES
    while count > 1:
        count //= 2
        halves = [
            builder.shuffle_vector(
                value, value, ir.Constant(ir.VectorType(I32, count), list(range(start, start + count)))
            )
            for start in (0, count)
        ]
        value = _combine(builder, kind, element, *halves)
    return builder.extract_element(value, ir.Constant(I32, 0))


def _make_tile_reduction(kind: str, memory: str) -> Any:
    """``tile_<kind>_<memory>(first, second, vectors) -> f64 or i64`` over 1 row of lanes to a whole tile of them.

    The addresses are of tiles or, where a sink takes an input as it is, of the input itself: the result is the same.
    """
    element = IN_TILES.get(memory, memory)
    wide = _accumulator(kind, element)
    is_put_aside = memory in IN_TILES and wide is DOUBLE
    read = element if is_put_aside else memory
    register = types.float64 if element in _FLOATS else types.int64
    watches_nan = kind in ("min", "max") and element in _FLOATS

    def reduce(_context: Any, first: Any, second: Any, vectors: Any) -> Any:
        def factors(builder: Builder, args: Any, index: Value) -> tuple[Value, ...]:
            value = _loaded(builder, args[0], index, read, wide)
            if kind == "dot":
                return value, _loaded(builder, args[1], index, read, wide)
            return (value, value) if kind == "sumsq" else (value,)

        def grow(builder: Builder, total: Value, parts: tuple[Value, ...]) -> Value:
            if len(parts) == 2 and element == "f32":
                return add_product(builder, total, parts[0], parts[1])
            item = parts[0] if len(parts) == 1 else _times(builder, parts[0], parts[1], element)
            return _combine(builder, kind, element, total, item)

        def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
            zero, one = ir.Constant(I64, 0), ir.Constant(I64, 1)
            inputs = args[: 2 if kind == "dot" else 1]
            aside = [Aside(builder, base, args[2], memory) for base in inputs] if is_put_aside else []
            args = [*(each.address for each in aside), *args[len(aside) :]]
            parts = factors(builder, args, zero)
            start = parts[0] if len(parts) == 1 else _times(builder, parts[0], parts[1], element)
            lane_bits = ir.VectorType(I64 if wide is DOUBLE else I32, LANES)
            nans_before = ir.Constant(lane_bits, [0] * LANES)
            if watches_nan:
                nans_before = _larger_bits(builder, nans_before, start)
            entry = builder.block
            header, loop, end = (builder.append_basic_block(name) for name in ("tile.next", "tile.loop", "tile.end"))
            builder.branch(header)
            builder.position_at_end(header)
            index = builder.phi(I64)
            total = builder.phi(ir.VectorType(wide, LANES))
            nans = builder.phi(lane_bits)
            builder.cbranch(builder.icmp_signed("<", index, args[2]), loop, end)
            builder.position_at_end(loop)
            if memory in IN_TILES or watches_nan:
                for base in inputs:
                    prefetch(builder, base, index, memory)
            for each in aside:
                each.fill(builder, index)
            parts = factors(builder, args, index)
            grown = grow(builder, total, parts)
            nans_now = _larger_bits(builder, nans, parts[0]) if watches_nan else nans
            following = builder.add(index, one)
            builder.branch(header)
            grows = ((index, one, following), (total, start, grown), (nans, nans_before, nans_now))
            for phi, first_value, next_value in grows:
                phi.add_incoming(first_value, entry)
                phi.add_incoming(next_value, loop)
            builder.position_at_end(end)
            result = reduced_lanes(builder, kind, element, total)
            if watches_nan:
                result = builder.select(_has_nan(builder, nans), ir.Constant(wide, float("nan")), result)
            if element == "f32" and wide is FLOAT:
                return builder.fpext(result, DOUBLE)
            return builder.sext(result, I64) if element == "i32" and wide is I32 else result

        return register(types.int64, types.int64, types.int64), generate

    reduce.__name__ = f"tile_{kind}_{memory}"
    return intrinsic(reduce)


def _make_peek(element: str) -> Any:
    """A load without the promise that nothing writes there: for tiles, tables and row buffers."""

    def peek(_context: Any, base: Any, index: Any) -> Any:
        def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
            pointer = builder.inttoptr(args[0], _ELEMENTS[element].as_pointer())
            return builder.load(builder.gep(pointer, [args[1]]))

        return _REGISTERS[element](types.int64, types.int64), generate

    peek.__name__ = f"peek_{element}"
    return intrinsic(peek)


def _make_poke(element: str) -> Any:
    def poke(_context: Any, base: Any, index: Any, value: Any) -> Any:
        def generate(target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
            pointer = builder.inttoptr(args[0], _ELEMENTS[element].as_pointer())
            builder.store(args[2], builder.gep(pointer, [args[1]]))
            return target.get_dummy_value()

        return types.void(types.int64, types.int64, _REGISTERS[element]), generate

    poke.__name__ = f"poke_{element}"
    return intrinsic(poke)


def _make_mask(name: str, element: Any, register: Any, compare: str) -> Any:
    """``name(address, limit)``: one bit for each of 64 elements, whether it compares with the limit as asked."""

    def mask(_context: Any, base: Any, limit: Any) -> Any:
        def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
            vector = ir.VectorType(element, 64)
            values = builder.load(builder.inttoptr(args[0], vector.as_pointer()), align=1)
            one = builder.insert_element(ir.Constant(vector, ir.Undefined), args[1], ir.Constant(I32, 0))
            limits = builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(I32, 64), [0] * 64))
            ordering = builder.icmp_signed if element is I32 else builder.fcmp_unordered
            return builder.bitcast(ordering(compare, values, limits), I64)

        return types.uint64(types.int64, register), generate

    mask.__name__ = name
    return intrinsic(mask)


mask_above_i32 = _make_mask("mask_above_i32", I32, types.int32, ">")
mask_above_f32 = _make_mask("mask_above_f32", FLOAT, types.float32, ">")  # NaN counts as above
mask_from_f32 = _make_mask("mask_from_f32", FLOAT, types.float32, ">=")  # and as not below


def _make_bit_count(operation: str, name: str) -> Any:
    def count(_context: Any, mask: Any) -> Any:
        def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
            if operation == "cttz":
                return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))
            return builder.ctpop(args[0])

        return types.int64(types.uint64), generate

    count.__name__ = name
    return intrinsic(count)


lowest_bit = _make_bit_count("cttz", "lowest_bit")
bit_count = _make_bit_count("ctpop", "bit_count")


@intrinsic
def bits_of_f32(_context: Any, value: Any) -> Any:
    def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
        return builder.bitcast(args[0], I32)

    return types.int32(types.float32), generate


@intrinsic
def bits_of_f64(_context: Any, value: Any) -> Any:
    def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
        return builder.bitcast(args[0], I64)

    return types.int64(types.float64), generate


@intrinsic
def f32_of_bits(_context: Any, bits: Any) -> Any:
    def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
        return builder.bitcast(args[0], FLOAT)

    return types.float32(types.int32), generate


TILE_FUNCTIONS: dict[str, Any] = {
    "stack_bytes": stack_bytes,
    "mask_above_i32": mask_above_i32,
    "mask_above_f32": mask_above_f32,
    "mask_from_f32": mask_from_f32,
    "lowest_bit": lowest_bit,
    "bit_count": bit_count,
    "bits_of_f32": bits_of_f32,
    "f32_of_bits": f32_of_bits,
    "bits_of_f64": bits_of_f64,
    **{
        f"tile_{kind}_{memory}": _make_tile_reduction(kind, memory)
        for kind in ("sum", "sumsq", "dot", "min", "max")
        for memory in (*_ELEMENTS, *IN_TILES)
    },
    **{f"peek_{element}": _make_peek(element) for element in _ELEMENTS},
    **{f"poke_{element}": _make_poke(element) for element in _ELEMENTS},
}
