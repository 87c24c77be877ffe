"""Calls of compiled code at an address, from compiled code."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from lbrx.devices.cpu.simd.vectors import I32, I64, instruction


def make_call(arguments: int) -> Any:
    """A function ``call(address, (int64, ...))`` of so many arguments; what it returns is the status."""

    def call(_context: Any, _function: Any, _arguments: Any) -> Any:
        def generate(_target: Any, builder: Any, _signature: Any, args: Any) -> Any:
            kind = ir.FunctionType(I32, [I64] * arguments)
            given = [builder.extract_value(args[1], number) for number in range(arguments)]
            return builder.sext(builder.call(builder.inttoptr(args[0], kind.as_pointer()), given), I64)

        tuple_type: Any = types.UniTuple
        return types.int64(types.int64, tuple_type(types.int64, arguments)), generate

    return instruction(call)
