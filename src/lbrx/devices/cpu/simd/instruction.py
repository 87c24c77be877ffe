"""How an instruction is declared: a function written as LLVM code, and the pieces that instructions share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, cast

from llvmlite import ir
from numba import njit
from numba.core.typing.templates import Signature
from numba.extending import intrinsic

Builder = Any
Value = Any
P = ParamSpec("P")
R = TypeVar("R")

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
HALF, FLOAT, DOUBLE = ir.HalfType(), ir.FloatType(), ir.DoubleType()


def jit(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a helper of a kernel: division by zero gives infinities, as in the kernels themselves."""
    options: Any = {"error_model": "numpy"}
    compiled: Any = njit(**options)(function)
    return cast(Callable[P, R], compiled)


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """The same for a function that has to become part of its caller's loop, so that the loop is vectorised."""
    options: Any = {"error_model": "numpy", "forceinline": True, "nogil": True}
    compiled: Any = njit(**options)(function)
    return cast(Callable[P, R], compiled)


def instruction(signature: Any) -> Callable[[Callable[..., Value]], Any]:
    """Declare a function of compiled code by what it emits.

    The function below the decorator gets the builder and the LLVM values of its arguments, and returns the value of
    the result, or None if it has none. ``signature`` is its Numba signature, or a function from the Numba types of the
    arguments to one: arguments are converted to the types in it, and None refuses them.
    """

    def declare(emit: Callable[..., Value]) -> Any:
        def typed(_context: Any, *arguments: Any) -> Any:
            chosen = signature if isinstance(signature, Signature) else signature(*arguments)

            def generate(target: Any, builder: Builder, _signature: Any, values: Sequence[Value]) -> Value:
                result = emit(builder, *values)
                return target.get_dummy_value() if result is None else result

            return None if chosen is None else (chosen, generate)

        typed.__name__, typed.__doc__ = emit.__name__, emit.__doc__
        typed.__signature__ = inspect.signature(emit)  # type: ignore[attr-defined]  # the builder is the context
        return intrinsic(typed)

    return declare


# -- vectors in LLVM ---------------------------------------------------------------------------------------------------


def vector_of(element: Any, like: Value) -> Any:
    """The type of a vector of another element with as many lanes as a value has."""
    return ir.VectorType(element, like.type.count)


def same(vector: Any, value: float) -> Value:
    """A constant in every lane."""
    return ir.Constant(vector, [value] * vector.count)


def spread(builder: Builder, scalar: Value, vector: Any) -> Value:
    """A scalar in every lane."""
    single = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.Constant(I32, 0))
    return builder.shuffle_vector(single, single, same(ir.VectorType(I32, vector.count), 0))


def shuffled(builder: Builder, first: Value, second: Value, lanes: Sequence[int]) -> Value:
    """Lanes of two vectors, counted through both."""
    return builder.shuffle_vector(first, second, ir.Constant(ir.VectorType(I32, len(lanes)), list(lanes)))


def reduced(builder: Builder, vector: Value, combine: Callable[[Value, Value], Value]) -> Value:
    """Lanes combined to one as a tree: lane i and lane i + lanes / 2 first."""
    lanes = vector.type.count
    while lanes > 1:
        lanes //= 2
        low, high = (shuffled(builder, vector, vector, range(at, at + lanes)) for at in (0, lanes))
        vector = combine(low, high)
    return builder.extract_element(vector, ir.Constant(I32, 0))


def widened_bf16(builder: Builder, bits: Value) -> Value:
    """Lanes of bf16 bits as f32."""
    wide = vector_of(I32, bits)
    return builder.bitcast(builder.shl(builder.zext(bits, wide), same(wide, 16)), vector_of(FLOAT, bits))


# -- memory and LLVM's own functions -----------------------------------------------------------------------------------


def pointer(builder: Builder, address: Value, target: Any, index: Value | None = None) -> Value:
    """A pointer to the value of a type at an address, or to the one with this index from there on."""
    first = builder.inttoptr(address, target.as_pointer())
    return first if index is None else builder.gep(first, [index])


def load_at(builder: Builder, address: Value, target: Any, offset_bytes: int = 0) -> Value:
    """The value of a type some bytes behind an address."""
    start = builder.add(address, ir.Constant(I64, offset_bytes)) if offset_bytes else address
    return builder.load(pointer(builder, start, target), align=1)


def store_at(builder: Builder, value: Value, address: Value) -> None:
    builder.store(value, pointer(builder, address, value.type), align=1)


def call_llvm(builder: Builder, name: str, result: Any, arguments: Sequence[Value]) -> Value:
    """Call a function of LLVM by its full name."""
    function = builder.module.globals.get(name) or ir.Function(
        builder.module, ir.FunctionType(result, [value.type for value in arguments]), name
    )
    return builder.call(function, arguments)
