"""Vectors for kernels: values of 8, 16 or 32 lanes with operators, so that a kernel says itself what runs side by side.

The width is written into the code, not chosen by the compiler: a loop is as fast as it looks, and lanes never mix,
so results are the same on every instruction set. Functions take a vector ``like`` where they need to know the width.
Nothing here fuses a multiplication with an addition.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from llvmlite import ir
from numba import njit, types
from numba.core.datamodel import models
from numba.extending import intrinsic, overload, register_model

Builder = Any
Value = Any
P = ParamSpec("P")
R = TypeVar("R")

I1, I8, I32, I64, FLOAT = ir.IntType(1), ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()
_ELEMENTS = {"f32": FLOAT, "i32": I32, "mask": I1}
_SCALARS: dict[str, Any] = {"f32": types.float32, "i32": types.int32}


def jit(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a helper of a kernel: division by zero gives infinities, as in the kernels themselves."""
    options: Any = {"error_model": "numpy"}
    compiled: Any = njit(**options)(function)
    return cast(Callable[P, R], compiled)


def instruction(function: Callable[..., Any]) -> Any:
    """A function written as LLVM code: from the types of its arguments it makes a signature and a code generator."""
    return intrinsic(function)


class Vector(types.Type):
    """The Numba type of ``lanes`` values of "f32", "i32" or "mask"."""

    def __init__(self, element: str, lanes: int) -> None:
        self.element = element
        self.lanes = lanes
        super().__init__(name=f"{element}x{lanes}")

    @property
    def llvm(self) -> Any:
        return ir.VectorType(_ELEMENTS[self.element], self.lanes)

    def of(self, element: str) -> Vector:
        return Vector(element, self.lanes)


class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Vector) -> None:
        super().__init__(manager, kind, kind.llvm)  # type: ignore[no-untyped-call]


register_model(Vector)(_VectorModel)


# -- making, loading, storing ------------------------------------------------------------------------------------------


def _broadcast(builder: Builder, scalar: Value, kind: Vector) -> Value:
    single = builder.insert_element(ir.Constant(kind.llvm, ir.Undefined), scalar, ir.Constant(I32, 0))
    zeros = ir.Constant(ir.VectorType(I32, kind.lanes), [0] * kind.lanes)
    return builder.shuffle_vector(single, single, zeros)


def _make_filled(element: str, lanes: int) -> Any:
    kind = Vector(element, lanes)

    def filled(_context: Any, value: Any) -> Any:
        def generate(target: Any, builder: Builder, signature: Any, args: Any) -> Value:
            scalar = target.cast(builder, args[0], signature.args[0], _SCALARS[element])
            return _broadcast(builder, scalar, kind)

        return kind(value), generate

    return instruction(filled)


f32x8, f32x16, f32x32 = (_make_filled("f32", lanes) for lanes in (8, 16, 32))


@instruction
def splat(_context: Any, like: Any, value: Any) -> Any:
    """The scalar in every lane, of the same kind as ``like``."""

    def generate(target: Any, builder: Builder, signature: Any, args: Any) -> Value:
        scalar = target.cast(builder, args[1], signature.args[1], _SCALARS[like.element])
        return _broadcast(builder, scalar, like)

    return like(like, value), generate


def _pointer(builder: Builder, base: Value, index: Value, kind: Any) -> Value:
    return builder.gep(builder.inttoptr(base, kind.as_pointer()), [index])


@instruction
def load(_context: Any, like: Any, _base: Any, _index: Any) -> Any:
    """The vector with this number (of the width of ``like``) of those at an address."""

    def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
        return builder.load(_pointer(builder, args[1], args[2], like.llvm), align=1)

    return like(like, types.int64, types.int64), generate


@instruction
def store(_context: Any, _base: Any, _index: Any, value: Any) -> Any:
    def generate(target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
        builder.store(args[2], _pointer(builder, args[0], args[1], value.llvm), align=1)
        return target.get_dummy_value()

    return types.void(types.int64, types.int64, value), generate


def _make_load_narrow(signed: bool) -> Any:
    def load_narrow(_context: Any, like: Any, _base: Any) -> Any:
        kind = like.of("i32")

        def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
            narrow = ir.VectorType(I8, like.lanes)
            loaded = builder.load(builder.inttoptr(args[1], narrow.as_pointer()), align=1)
            return builder.sext(loaded, kind.llvm) if signed else builder.zext(loaded, kind.llvm)

        return kind(like, types.int64), generate

    return instruction(load_narrow)


load_u8, load_i8 = _make_load_narrow(signed=False), _make_load_narrow(signed=True)


@instruction
def store_u8(_context: Any, _base: Any, value: Any) -> Any:
    """The low bytes of the lanes, one after the other from an address on."""

    def generate(target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
        narrow = ir.VectorType(I8, value.lanes)
        builder.store(builder.trunc(args[1], narrow), builder.inttoptr(args[0], narrow.as_pointer()), align=1)
        return target.get_dummy_value()

    return types.void(types.int64, value), generate


# -- operators ---------------------------------------------------------------------------------------------------------


def _register(python_operator: Any, emit: Callable[[Builder, Vector, Value, Value], Value], is_mask: bool) -> None:
    """Make an operator work between vectors, and between a vector and a number."""

    def combined(_context: Any, left: Any, right: Any) -> Any:
        if left != right:
            return None

        def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
            return emit(builder, left, args[0], args[1])

        return (left.of("mask") if is_mask else left)(left, right), generate

    of_vectors = instruction(combined)

    def chosen(left: Any, right: Any) -> Any:
        if isinstance(left, Vector) and isinstance(right, Vector):
            return lambda left, right: of_vectors(left, right)
        if isinstance(left, Vector) and isinstance(right, types.Number):
            return lambda left, right: of_vectors(left, splat(left, right))
        if isinstance(right, Vector) and isinstance(left, types.Number):
            return lambda left, right: of_vectors(splat(right, left), right)
        return None

    overload(python_operator, strict=False)(chosen)


def _arithmetic(of_floats: str | None, of_integers: str | None) -> Callable[[Builder, Vector, Value, Value], Value]:
    def emit(builder: Builder, kind: Vector, left: Value, right: Value) -> Value:
        name = of_floats if kind.element == "f32" else of_integers
        if name is None:
            raise TypeError(f"the operator is not defined for {kind}")
        return getattr(builder, name)(left, right)

    return emit


def _comparison(symbol: str) -> Callable[[Builder, Vector, Value, Value], Value]:
    def emit(builder: Builder, kind: Vector, left: Value, right: Value) -> Value:
        if kind.element == "f32":
            compare = builder.fcmp_unordered if symbol == "!=" else builder.fcmp_ordered
            return compare(symbol, left, right)
        return builder.icmp_signed(symbol, left, right)

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


# -- functions ---------------------------------------------------------------------------------------------------------


@instruction
def select(_context: Any, mask: Any, chosen: Any, otherwise: Any) -> Any:
    """Lane by lane: ``chosen`` where the mask is set."""

    def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
        return builder.select(args[0], args[1], args[2])

    return chosen(mask, chosen, otherwise), generate


def _make_float_function(name: str) -> Any:
    def of_lanes(_context: Any, value: Any) -> Any:
        def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
            full = f"llvm.{name}.v{value.lanes}f32"
            function = builder.module.globals.get(full) or ir.Function(
                builder.module, ir.FunctionType(value.llvm, [value.llvm]), full
            )
            return builder.call(function, args)

        return value(value), generate

    return instruction(of_lanes)


absolute = _make_float_function("fabs")
square_root = _make_float_function("sqrt")
nearest_even = _make_float_function("roundeven")
nearest_away = _make_float_function("round")


def _make_extreme(symbol: str) -> Any:
    def extreme(_context: Any, left: Any, right: Any) -> Any:
        def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
            return builder.select(_comparison(symbol)(builder, left, args[0], args[1]), args[0], args[1])

        return left(left, right), generate

    return instruction(extreme)


minimum, maximum = _make_extreme("<"), _make_extreme(">")


@jit
def clamp(value: Any, low: Any, high: Any) -> Any:
    """Within [low, high], two numbers; NaN becomes ``low``."""
    return minimum(maximum(value, splat(value, low)), splat(value, high))


@instruction
def to_i32(_context: Any, value: Any) -> Any:
    """Truncated towards zero; the value has to fit."""

    def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
        return builder.fptosi(args[0], value.of("i32").llvm)

    return value.of("i32")(value), generate


@instruction
def to_f32(_context: Any, value: Any) -> Any:
    def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
        return builder.sitofp(args[0], value.of("f32").llvm)

    return value.of("f32")(value), generate


@instruction
def round_to_f16(_context: Any, value: Any) -> Any:
    """Each lane rounded to the nearest half and widened again."""

    def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
        return builder.fpext(builder.fptrunc(args[0], ir.VectorType(ir.HalfType(), value.lanes)), value.llvm)

    return value(value), generate


def stairs(thresholds: tuple[float, ...], results: tuple[float, ...]) -> Any:
    """A function of f32 lanes: results[k], where k is how many of the (rising) thresholds a value reaches."""

    def climbed(_context: Any, value: Any) -> Any:
        def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
            found = _broadcast(builder, ir.Constant(FLOAT, results[0]), value)
            for threshold, result in zip(thresholds, results[1:], strict=True):
                is_reached = builder.fcmp_ordered(
                    ">=", args[0], _broadcast(builder, ir.Constant(FLOAT, threshold), value)
                )
                found = builder.select(is_reached, _broadcast(builder, ir.Constant(FLOAT, result), value), found)
            return found

        return value(value), generate

    return instruction(climbed)


@instruction
def f32_of_bits(_context: Any, _bits: Any) -> Any:
    """The f32 whose bits are the low 32 of a number."""

    def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
        return builder.bitcast(builder.trunc(args[0], I32), FLOAT)

    return types.float32(types.int64), generate


@instruction
def mask_bits(_context: Any, mask: Any) -> Any:
    """The lanes of a mask as the bits of a number, lane 0 lowest."""

    def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
        return builder.zext(builder.bitcast(args[0], ir.IntType(mask.lanes)), I64)

    return types.int64(mask), generate


@instruction
def unpack_bits(_context: Any, like: Any, _bits: Any) -> Any:
    """The low bits of a number as lanes of 0 and 1: the opposite of `mask_bits`."""
    kind = like.of("i32")

    def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
        narrow = builder.trunc(args[1], ir.IntType(like.lanes))
        return builder.zext(builder.bitcast(narrow, like.of("mask").llvm), kind.llvm)

    return kind(like, types.int64), generate


def _make_lane_extreme(symbol: str) -> Any:
    def extreme(_context: Any, value: Any) -> Any:
        def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
            found, count = args[0], value.lanes
            while count > 1:
                count //= 2
                low, high = (
                    builder.shuffle_vector(
                        found, found, ir.Constant(ir.VectorType(I32, count), list(range(at, at + count)))
                    )
                    for at in (0, count)
                )
                found = builder.select(builder.fcmp_ordered(symbol, low, high), low, high)
            return builder.extract_element(found, ir.Constant(I32, 0))

        return types.float32(value), generate

    return instruction(extreme)


lane_max, lane_min = _make_lane_extreme(">"), _make_lane_extreme("<")


@instruction
def lane(_context: Any, value: Any, _number: Any) -> Any:
    """One lane of a vector."""

    def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
        return builder.extract_element(args[0], args[1])

    return _SCALARS[value.element](value, types.int64), generate


@instruction
def first_set_bit(_context: Any, _bits: Any) -> Any:
    """The number of the lowest bit that is set, or 64."""

    def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
        return builder.cttz(args[0], ir.Constant(I1, 0))

    return types.int64(types.int64), generate
