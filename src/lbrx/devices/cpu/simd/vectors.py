"""Vectors for kernels: values of 8, 16 or 32 lanes with operators, so that a kernel says itself what runs side by side.

The width is written into the code, not chosen by the compiler: a loop is as fast as it looks, and lanes never mix,
so results are the same on every instruction set. Functions take a vector ``like`` where they need to know the width.
Nothing here fuses a multiplication with an addition.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.datamodel import models
from numba.extending import overload, register_model

from lbrx.devices.cpu.simd.emit import load_at, pointer, reduced, shuffled, spread, store_at, vector_of
from lbrx.devices.cpu.simd.instruction import DOUBLE, FLOAT, I1, I8, I16, I32, I64, Builder, Value, instruction, jit

_ELEMENTS = {"f32": FLOAT, "f64": DOUBLE, "i32": I32, "i16": I16, "mask": I1}
_SCALARS: dict[str, Any] = {"f32": types.float32, "f64": types.float64, "i32": types.int32, "i16": types.int16}


class Vector(types.Type):
    """The Numba type of ``lanes`` values of "f32", "f64", "i32", "i16" or "mask"."""

    def __init__(self, element: str, lanes: int) -> None:
        self.element = element
        self.lanes = lanes
        super().__init__(name=f"{element}x{lanes}")

    @property
    def llvm(self) -> Any:
        return ir.VectorType(_ELEMENTS[self.element], self.lanes)

    def of(self, element: str) -> Any:
        return Vector(element, self.lanes)


class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, vector: Vector) -> None:
        super().__init__(manager, vector, vector.llvm)  # type: ignore[no-untyped-call]


register_model(Vector)(_VectorModel)


# -- making, loading, storing ------------------------------------------------------------------------------------------


def make_filled(element: str, lanes: int) -> Any:
    vector: Any = Vector(element, lanes)

    @instruction(vector(_SCALARS[element]))
    def filled(builder: Builder, value: Value) -> Value:
        return spread(builder, value, vector.llvm)

    return filled


f32x8, f32x16, f32x32, f64x8 = (make_filled(*shape) for shape in (("f32", 8), ("f32", 16), ("f32", 32), ("f64", 8)))
i16x16, i32x16 = make_filled("i16", 16), make_filled("i32", 16)


@instruction(lambda like, _value: like(like, _SCALARS[like.element]))
def splat(builder: Builder, like: Value, value: Value) -> Value:
    """The scalar in every lane, of the same type as ``like``."""
    return spread(builder, value, like.type)


@instruction(lambda like, _base, _index: like(like, types.int64, types.int64))
def load(builder: Builder, like: Value, base: Value, index: Value) -> Value:
    """The vector with this number (of the width of ``like``) of those at an address."""
    return builder.load(pointer(builder, base, like.type, index), align=1)


@instruction(lambda _base, _index, value: types.void(types.int64, types.int64, value))
def store(builder: Builder, base: Value, index: Value, value: Value) -> None:
    builder.store(value, pointer(builder, base, value.type, index), align=1)


def _make_load_narrow(widen: str) -> Any:
    @instruction(lambda like, _base: like.of("i32")(like, types.int64))
    def load_narrow(builder: Builder, like: Value, base: Value) -> Value:
        return getattr(builder, widen)(load_at(builder, base, vector_of(I8, like)), vector_of(I32, like))

    return load_narrow


load_u8, load_i8 = _make_load_narrow("zext"), _make_load_narrow("sext")


def _make_store_narrow(element: Any) -> Any:
    """The low bits of the lanes, one after the other from an address on."""

    @instruction(lambda _base, value: types.void(types.int64, value))
    def store_narrow(builder: Builder, base: Value, value: Value) -> None:
        store_at(builder, builder.trunc(value, vector_of(element, value)), base)

    return store_narrow


store_u8, store_i16 = _make_store_narrow(I8), _make_store_narrow(I16)


# -- operators ---------------------------------------------------------------------------------------------------------

Emit = Callable[[Builder, Value, Value], Value]


def _register(python_operator: Any, emit: Emit, is_mask: bool) -> None:
    """Make an operator work between vectors, and between a vector and a number."""

    @instruction(lambda left, right: (left.of("mask") if is_mask else left)(left, right) if left == right else None)
    def of_vectors(builder: Builder, left: Value, right: Value) -> Value:
        return emit(builder, left, right)

    def chosen(left: Any, right: Any) -> Any:
        if isinstance(left, Vector) and isinstance(right, Vector):
            return lambda left, right: of_vectors(left, right)
        if isinstance(left, Vector) and isinstance(right, types.Number):
            return lambda left, right: of_vectors(left, splat(left, right))
        if isinstance(right, Vector) and isinstance(left, types.Number):
            return lambda left, right: of_vectors(splat(right, left), right)
        return None

    overload(python_operator, strict=False)(chosen)


def _is_float(value: Value) -> bool:
    return value.type.element in (FLOAT, DOUBLE)


def _arithmetic(of_floats: str | None, of_integers: str | None) -> Emit:
    def emit(builder: Builder, left: Value, right: Value) -> Value:
        name = of_floats if _is_float(left) else of_integers
        if name is None:
            raise TypeError(f"the operator is not defined for {left.type}")
        return getattr(builder, name)(left, right)

    return emit


def _comparison(symbol: str) -> Emit:
    def emit(builder: Builder, left: Value, right: Value) -> Value:
        if not _is_float(left):
            return builder.icmp_signed(symbol, left, right)
        compare = builder.fcmp_unordered if symbol == "!=" else builder.fcmp_ordered
        return compare(symbol, left, right)

    return emit


for _operator, _names in {
    operator.add: ("fadd", "add"),
    operator.sub: ("fsub", "sub"),
    operator.mul: ("fmul", "mul"),
    operator.truediv: ("fdiv", None),
    operator.and_: (None, "and_"),
    operator.or_: (None, "or_"),
    operator.lshift: (None, "shl"),
    operator.rshift: (None, "ashr"),
}.items():
    _register(_operator, _arithmetic(*_names), is_mask=False)
for _operator, _symbol in {
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
    operator.eq: "==",
    operator.ne: "!=",
}.items():
    _register(_operator, _comparison(_symbol), is_mask=True)


# -- choosing ----------------------------------------------------------------------------------------------------------


@instruction(lambda mask, chosen, otherwise: chosen(mask, chosen, otherwise))
def select(builder: Builder, mask: Value, chosen: Value, otherwise: Value) -> Value:
    """Lane by lane: ``chosen`` where the mask is set."""
    return builder.select(mask, chosen, otherwise)


def _make_extreme(symbol: str) -> Any:
    compare = _comparison(symbol)

    @instruction(lambda left, right: left(left, right))
    def extreme(builder: Builder, left: Value, right: Value) -> Value:
        return builder.select(compare(builder, left, right), left, right)

    return extreme


minimum, maximum = _make_extreme("<"), _make_extreme(">")


@jit
def clamp(value: Any, low: Any, high: Any) -> Any:
    """Within [low, high], two numbers; NaN becomes ``low``."""
    return minimum(maximum(value, splat(value, low)), splat(value, high))


# -- conversions -------------------------------------------------------------------------------------------------------


def _make_conversion(element: str, conversion: str) -> Any:
    """Every lane as another type."""

    @instruction(lambda value: value.of(element)(value))
    def converted(builder: Builder, value: Value) -> Value:
        return getattr(builder, conversion)(value, vector_of(_ELEMENTS[element], value))

    return converted


to_i32 = _make_conversion("i32", "fptosi")  # truncated towards zero; the value has to fit
to_f32, to_f64 = _make_conversion("f32", "sitofp"), _make_conversion("f64", "fpext")
bits_of, floats_of = _make_conversion("i32", "bitcast"), _make_conversion("f32", "bitcast")


@instruction(lambda mask: types.int64(mask))
def mask_bits(builder: Builder, mask: Value) -> Value:
    """The lanes of a mask as the bits of a number, lane 0 lowest."""
    return builder.zext(builder.bitcast(mask, ir.IntType(mask.type.count)), I64)


@instruction(lambda like, _bits: like.of("i32")(like, types.int64))
def unpack_bits(builder: Builder, like: Value, bits: Value) -> Value:
    """The low bits of a number, up to 32, as lanes of 0 and 1: the opposite of `mask_bits`."""
    lanes = vector_of(I32, like)
    single_bits = ir.Constant(lanes, [1 << lane for lane in range(lanes.count)])
    chosen = builder.and_(spread(builder, builder.trunc(bits, I32), lanes), single_bits)
    return builder.zext(builder.icmp_unsigned("!=", chosen, ir.Constant(lanes, [0] * lanes.count)), lanes)


@instruction(lambda like, _count: like.of("mask")(like, types.int64))
def first_lanes(builder: Builder, like: Value, count: Value) -> Value:
    """A mask of so many lanes."""
    numbers = ir.Constant(vector_of(I32, like), list(range(like.type.count)))
    return builder.icmp_signed("<", numbers, spread(builder, builder.trunc(count, I32), numbers.type))


# -- across lanes ------------------------------------------------------------------------------------------------------


@instruction(lambda value, _number: _SCALARS[value.element](value, types.int64))
def lane(builder: Builder, value: Value, number: Value) -> Value:
    """One lane of a vector."""
    return builder.extract_element(value, number)


@instruction(lambda value: _SCALARS[value.element](value))
def lane_sum(builder: Builder, value: Value) -> Value:
    """The sum of float lanes, in their own type and as a tree."""
    return reduced(builder, value, builder.fadd)


@instruction(lambda _base, a, b, c, d: types.void(types.int64, a, a, a, a) if a == b == c == d else None)
def store_lane_sums(builder: Builder, base: Value, a: Value, b: Value, c: Value, d: Value) -> None:
    """Four lane sums, one after the other from an address on, each as `lane_sum` makes it."""
    lanes = a.type.count

    def halved(first: Value, second: Value, group: int) -> Value:
        """Groups of lanes of both vectors, each with its halves added."""
        starts = range(0, first.type.count + (second.type.count if second is not first else 0), group)
        low = [start + lane for start in starts for lane in range(group // 2)]
        return builder.fadd(
            shuffled(builder, first, second, low),
            shuffled(builder, first, second, [lane + group // 2 for lane in low]),
        )

    sums, group = halved(halved(a, b, lanes), halved(c, d, lanes), lanes // 2), lanes // 4
    while group > 1:
        sums, group = halved(sums, sums, group), group // 2
    store_at(builder, sums, base)


def _make_lane_extreme(symbol: str) -> Any:
    compare = _comparison(symbol)

    @instruction(lambda value: _SCALARS[value.element](value))
    def extreme(builder: Builder, value: Value) -> Value:
        return reduced(builder, value, lambda low, high: builder.select(compare(builder, low, high), low, high))

    return extreme


lane_max, lane_min = _make_lane_extreme(">"), _make_lane_extreme("<")


# -- 64 elements as bits -----------------------------------------------------------------------------------------------


def _make_mask(element: str, compare: str) -> Any:
    """One bit for each of the 64 elements at an address, whether it compares with the limit as asked."""
    vector = Vector(element, 64).llvm

    @instruction(types.uint64(types.int64, _SCALARS[element]))
    def mask(builder: Builder, base: Value, limit: Value) -> Value:
        values, limits = load_at(builder, base, vector), spread(builder, limit, vector)
        ordering = builder.icmp_signed if element == "i32" else builder.fcmp_unordered
        return builder.bitcast(ordering(compare, values, limits), I64)

    return mask


mask_above_i32 = _make_mask("i32", ">")
mask_above_f32 = _make_mask("f32", ">")  # NaN counts as above
mask_from_f32 = _make_mask("f32", ">=")  # and as not below
