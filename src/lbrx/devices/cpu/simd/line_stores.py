"""Numba intrinsics that move whole cache lines to memory past the caches (see streamed_stores.py)."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from lbrx.devices.cpu.codegen.streamed_stores import LINE_BYTES, PIECE_BYTES
from lbrx.devices.cpu.simd.elements import I32, I64

Builder = Any
Value = Any
_LINE = ir.VectorType(I32, LINE_BYTES // 4)


@intrinsic
def stream_out(_context: Any, source: Any, target: Any) -> Any:
    """Move a piece from one address to another, both at the start of a cache line."""

    def generate(context: Any, builder: Builder, _signature: Any, args: Any) -> Value:
        places = [builder.inttoptr(address, _LINE.as_pointer()) for address in args]
        with cgutils.for_range(builder, ir.Constant(I64, PIECE_BYTES // LINE_BYTES)) as loop:
            line = builder.load(builder.gep(places[0], [loop.index]), align=LINE_BYTES)
            stored = builder.store(line, builder.gep(places[1], [loop.index]), align=LINE_BYTES)
            stored.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(I32, 1)]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def finish_streaming(_context: Any) -> Any:
    """Wait until all that was moved is there for other threads to see."""

    def generate(context: Any, builder: Builder, _signature: Any, _args: Any) -> Value:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


LINE_FUNCTIONS: dict[str, Any] = {"stream_out": stream_out, "finish_streaming": finish_streaming}
