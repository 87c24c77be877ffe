"""Pieces of LLVM code that instructions share: they get a builder and return the value that they emit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from lbrx.devices.cpu.simd.instruction import FLOAT, I32, I64, Builder, Value


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
