"""Calls of compiled code at an address, from compiled code."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from lbrx.devices.cpu.simd.emit import pointer
from lbrx.devices.cpu.simd.instruction import I32, I64, Builder, Value, instruction


def make_call(arguments: int) -> Any:
    """A function ``call(address, (int64, ...))`` of so many arguments; what it returns is the status."""
    function = ir.FunctionType(I32, [I64] * arguments)
    tuple_type: Any = types.UniTuple

    @instruction(types.int64(types.int64, tuple_type(types.int64, arguments)))
    def call(builder: Builder, address: Value, given: Value) -> Value:
        values = [builder.extract_value(given, number) for number in range(arguments)]
        return builder.sext(builder.call(pointer(builder, address, function), values), I64)

    return call
