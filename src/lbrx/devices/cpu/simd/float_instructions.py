"""Instructions on single floats, for functions that LLVM turns into packed ones (inside compiled code only)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

Codegen = Callable[[Any, Any, Any, Any], Any]
Typed = tuple[Any, Codegen] | None

# Numba's own annotation of `intrinsic` keeps the typing context as an argument of the caller.
_intrinsic: Any = intrinsic


def _reinterpret(source: Any, target: Any, llvm_target: ir.Type, given: Any) -> Typed:
    """The typing and the code of a bit cast, or None (no such overload) when another type is given."""
    if given != source:
        return None

    def code(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], llvm_target)

    return target(source), code


def _llvm_unary(name: str, given: Any) -> Typed:
    """The typing and the code of an LLVM intrinsic from a float to the same float."""
    if given not in (types.float32, types.float64):
        return None

    def code(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        function = builder.module.declare_intrinsic(name, [args[0].type])
        return builder.call(function, args)

    return given(given), code


@_intrinsic
def bits_from_f32(_typing: Any, value: Any) -> Typed:
    """The 32 bits of a float32 as an int32 (inside compiled code only)."""
    return _reinterpret(types.float32, types.int32, ir.IntType(32), value)


@_intrinsic
def f32_from_bits(_typing: Any, bits: Any) -> Typed:
    """The float32 whose 32 bits an int32 holds (inside compiled code only)."""
    return _reinterpret(types.int32, types.float32, ir.FloatType(), bits)


@_intrinsic
def rint(_typing: Any, value: Any) -> Typed:
    """The nearest integer, ties to even, as the same float type (inside compiled code only)."""
    return _llvm_unary("llvm.rint", value)


@_intrinsic
def floor(_typing: Any, value: Any) -> Typed:
    """The next integer below, as the same float type (inside compiled code only)."""
    return _llvm_unary("llvm.floor", value)


@_intrinsic
def fabs(_typing: Any, value: Any) -> Typed:
    """The absolute value of a float (inside compiled code only)."""
    return _llvm_unary("llvm.fabs", value)


@_intrinsic
def fused(_typing: Any, left: Any, right: Any, added: Any) -> Typed:
    """``left * right + added`` of float32, rounded once: one instruction almost everywhere, the same everywhere."""
    if not left == right == added == types.float32:
        return None

    def code(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.fma(*args)

    return types.float32(left, right, added), code


@_intrinsic
def square_root(_typing: Any, value: Any) -> Typed:
    """The correctly rounded square root, NaN below zero."""
    return _llvm_unary("llvm.sqrt", value)
