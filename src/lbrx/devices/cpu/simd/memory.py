"""Memory besides inputs and outputs: buffers on the stack, tables, prefetches, and stores past the caches."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from lbrx.devices.cpu.simd.emit import call_llvm, pointer
from lbrx.devices.cpu.simd.instruction import DOUBLE, FLOAT, I8, I32, I64, Builder, Value, instruction
from lbrx.devices.cpu.simd.processor import LINE_BYTES, PIECE_BYTES

ELEMENTS: dict[str, tuple[Any, Any]] = {
    "f32": (FLOAT, types.float32),
    "f64": (DOUBLE, types.float64),
    "i32": (I32, types.int32),
    "i64": (I64, types.int64),
}
_LINE = ir.VectorType(I32, LINE_BYTES // 4)


def _stack_bytes(_context: Any, nbytes: Any) -> Any:
    """The address of so many bytes (a literal) on the stack."""
    size = nbytes.literal_value

    def generate(_target: Any, builder: Builder, _signature: Any, _args: Any) -> Value:
        with builder.goto_entry_block():
            memory = builder.alloca(ir.ArrayType(I64, size // 8))
            memory.align = 64
        return builder.ptrtoint(memory, I64)

    return types.int64(nbytes), generate


# Not an `instruction`: it needs the number itself, not a value.
stack_bytes: Any = intrinsic(prefer_literal=True)(_stack_bytes)


def _make_peek(element: str) -> Any:
    """A load without the promise that nothing writes there: for tiles, tables and row buffers."""
    memory, register = ELEMENTS[element]

    @instruction(register(types.int64, types.int64))
    def peek(builder: Builder, base: Value, index: Value) -> Value:
        return builder.load(pointer(builder, base, memory, index))

    return peek


def _make_poke(element: str) -> Any:
    memory, register = ELEMENTS[element]

    @instruction(types.void(types.int64, types.int64, register))
    def poke(builder: Builder, base: Value, index: Value, value: Value) -> None:
        builder.store(value, pointer(builder, base, memory, index))

    return poke


def prefetch(builder: Builder, address: Value, level: int = 1) -> None:
    """Ask for the cache line at a pointer, in a level of the cache; an address beyond the end does no harm."""
    options = (ir.Constant(I32, value) for value in (0, 4 - level, 1))
    call_llvm(builder, "llvm.prefetch.p0", ir.VoidType(), [address, *options])


def make_prefetch(lines: int, level: int = 1) -> Any:
    """Ask for some cache lines that will be read later."""

    @instruction(types.void(types.int64))
    def prefetch_lines(builder: Builder, address: Value) -> None:
        for line in range(lines):
            start = builder.add(address, ir.Constant(I64, LINE_BYTES * line))
            prefetch(builder, pointer(builder, start, I8), level)

    return prefetch_lines


prefetch_line, prefetch_3_lines, prefetch_5_lines = make_prefetch(1), make_prefetch(3), make_prefetch(5)
prefetch_3_lines_to_l2 = make_prefetch(3, level=2)


@instruction(types.int64(*[types.int64] * 3))
def copied_bytes(builder: Builder, source: Value, count: Value, target: Value) -> Value:
    """Copy bytes; returns the address of the copy."""
    with cgutils.for_range(builder, count) as loop:
        byte = builder.load(pointer(builder, source, I8, loop.index))
        builder.store(byte, pointer(builder, target, I8, loop.index))
    return target


@instruction(types.void(types.int64, types.int64))
def stream_out(builder: Builder, source: Value, target: Value) -> None:
    """Move a piece from one address to another past the caches; both are at the start of a cache line."""
    with cgutils.for_range(builder, ir.Constant(I64, PIECE_BYTES // LINE_BYTES)) as loop:
        line = builder.load(pointer(builder, source, _LINE, loop.index), align=LINE_BYTES)
        stored = builder.store(line, pointer(builder, target, _LINE, loop.index), align=LINE_BYTES)
        stored.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(I32, 1)]))


@instruction(types.void())
def finish_streaming(builder: Builder) -> None:
    """Wait until all that was moved is there for other threads to see."""
    builder.fence("seq_cst")


MEMORY_FUNCTIONS: dict[str, Any] = {
    "stack_bytes": stack_bytes,
    "stream_out": stream_out,
    "finish_streaming": finish_streaming,
    **{f"peek_{element}": _make_peek(element) for element in ELEMENTS},
    **{f"poke_{element}": _make_poke(element) for element in ELEMENTS},
}
"""By the names that generated kernels call them by."""

peek_f32, peek_f64, peek_i32, peek_i64 = (MEMORY_FUNCTIONS[f"peek_{element}"] for element in ELEMENTS)
poke_f32, poke_f64, poke_i32, poke_i64 = (MEMORY_FUNCTIONS[f"poke_{element}"] for element in ELEMENTS)
