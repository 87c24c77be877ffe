"""How the functions of kernels are declared: compiled Python, or instructions written as LLVM code."""

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
