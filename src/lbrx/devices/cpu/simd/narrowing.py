"""Keeping arithmetic narrow where LLVM would rather do it in 64 bits."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_I32 = ir.IntType(32)


@intrinsic
def low_word(_context: Any, value: Any) -> Any:
    """The low 32 bits of an int64 as a uint32 of which the compiler does not know where it came from.

    Else it would move the narrowing behind whatever is done with the word: a loop that adds its counter to it would
    then compute in lanes of 64 bits. Outside a loop this costs nothing.
    """

    def generate(_target: Any, builder: Any, _signature: Any, args: Any) -> Any:
        word = builder.trunc(args[0], _I32)
        return builder.asm(ir.FunctionType(_I32, [_I32]), "", "=r,0", [word], False)

    return types.uint32(types.int64), generate
