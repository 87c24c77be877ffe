"""Instructions on single numbers, most of which LLVM turns into packed ones inside a loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from lbrx.devices.cpu.simd.instruction import FLOAT, I1, I32, I64, Builder, Value, instruction

_FLOATS = (types.float32, types.float64)


def _only(given: Any, result: Any) -> Callable[[Any], Any]:
    """The signature of a function that takes one type and refuses all others."""
    return lambda value: result(given) if value == given else None


@instruction(_only(types.float32, types.int32))
def bits_from_f32(builder: Builder, value: Value) -> Value:
    """The 32 bits of a float32 as an int32 (inside compiled code only)."""
    return builder.bitcast(value, I32)


@instruction(_only(types.float64, types.int64))
def bits_from_f64(builder: Builder, value: Value) -> Value:
    return builder.bitcast(value, I64)


@instruction(types.float32(types.int32))
def f32_from_bits(builder: Builder, bits: Value) -> Value:
    """The float32 whose bits are the low 32 of a number (inside compiled code only)."""
    return builder.bitcast(bits, FLOAT)


def _make_function(name: str) -> Any:
    """A function of LLVM from a float to the same float."""

    @instruction(lambda value: value(value) if value in _FLOATS else None)
    def of_float(builder: Builder, value: Value) -> Value:
        return builder.call(builder.module.declare_intrinsic(name, [value.type]), [value])

    return of_float


rint = _make_function("llvm.rint")  # ties to even
floor, fabs = _make_function("llvm.floor"), _make_function("llvm.fabs")
square_root = _make_function("llvm.sqrt")  # correctly rounded, NaN below zero


@instruction(lambda *given: types.float32(*given) if set(given) == {types.float32} else None)
def fused(builder: Builder, left: Value, right: Value, added: Value) -> Value:
    """``left * right + added`` of float32, rounded once: one instruction almost everywhere, the same everywhere."""
    return builder.fma(left, right, added)


@instruction(types.uint32(types.int64))
def low_word(builder: Builder, value: Value) -> Value:
    """The low 32 bits of an int64 as a uint32 of which the compiler does not know where it came from.

    Else it would move the narrowing behind whatever is done with the word: a loop that adds its counter to it would
    then compute in lanes of 64 bits. Outside a loop this costs nothing.
    """
    word = builder.trunc(value, I32)
    return builder.asm(ir.FunctionType(I32, [I32]), "", "=r,0", [word], False)


@instruction(types.int64(types.int64))
def first_set_bit(builder: Builder, bits: Value) -> Value:
    """The number of the lowest bit that is set, or 64."""
    return builder.cttz(bits, ir.Constant(I1, 0))


@instruction(types.int64(types.uint64))
def lowest_bit(builder: Builder, bits: Value) -> Value:
    """The number of the lowest bit that is set. There has to be one."""
    return builder.cttz(bits, ir.Constant(I1, 1))


@instruction(types.int64(types.uint64))
def bit_count(builder: Builder, bits: Value) -> Value:
    return builder.ctpop(bits)
