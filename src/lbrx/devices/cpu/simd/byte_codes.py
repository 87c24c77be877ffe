"""64 bytes of codes side by side: bit fields, tables of 16 bytes, bits as lanes, and constants in memory.

Functions get a builder and emit LLVM code. Vectors of 64 bytes are one register of 512 bits, two of 256 or four of 128.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from lbrx.devices.cpu.simd.emit import call_llvm, load_at, same, shuffled, vector_of
from lbrx.devices.cpu.simd.instruction import FLOAT, I8, I16, I32, I64, Builder, Value, instruction
from lbrx.devices.cpu.simd.processor import HAS_512_BITS, HAS_AVX2, IS_ARM

BYTES = ir.VectorType(I8, 64)


def lanes_of(element: Any, values: Sequence[int]) -> Value:
    """A constant vector."""
    return ir.Constant(ir.VectorType(element, len(values)), list(values))


def load_bytes(builder: Builder, address: Value, offset: int, count: int) -> Value:
    return load_at(builder, address, ir.VectorType(I8, count), offset)


def joined(builder: Builder, parts: Sequence[Value]) -> Value:
    """Vectors of one size one after the other; their number is a power of two."""
    while len(parts) > 1:
        count = 2 * parts[0].type.count
        parts = [shuffled(builder, parts[at], parts[at + 1], range(count)) for at in range(0, len(parts), 2)]
    return parts[0]


def repeated(builder: Builder, vector: Value, times: int) -> Value:
    return shuffled(builder, vector, vector, list(range(vector.type.count)) * times)


def field(builder: Builder, vector: Value, shifts: int | Sequence[int], mask: int) -> Value:
    """Some bits of every byte: after a shift to the right, or a shift for every four bytes."""
    element, count = (I16, vector.type.count // 2) if isinstance(shifts, int) else (I32, vector.type.count // 4)
    words = ir.VectorType(element, count)
    if shifts and IS_ARM:  # it shifts bytes
        moved = builder.lshr(vector, _shifts_of_bytes(vector, shifts))
    elif shifts:
        amounts = same(words, shifts) if isinstance(shifts, int) else lanes_of(element, shifts)
        moved = builder.bitcast(builder.lshr(builder.bitcast(vector, words), amounts), vector.type)
    else:
        moved = vector
    return builder.and_(moved, same(vector.type, mask))


def _shifts_of_bytes(vector: Value, shifts: int | Sequence[int]) -> Value:
    if isinstance(shifts, int):
        return same(vector.type, shifts)
    return lanes_of(I8, [shift for shift in shifts for _ in range(4)])


def of_sixteens(builder: Builder, name: str, left: Value, right: Value, *more: Value) -> Value:
    """An instruction of Arm on two vectors of bytes, 16 of each at a time."""
    parts = []
    for first in range(0, left.type.count, 16):
        own = (shuffled(builder, each, each, range(first, first + 16)) for each in (left, right))
        function = f"llvm.aarch64.neon.{name}.v16i8"
        parts.append(call_llvm(builder, function, ir.VectorType(I8, 16), [*own, *more]))
    return joined(builder, parts)


def _in_registers(builder: Builder, name: str, lanes: int, table: Value, indices: Value) -> Value:
    """A function of LLVM on a table and each part of the indices."""
    parts, count = [], indices.type.count
    for first in range(0, count, lanes):
        part = shuffled(builder, indices, indices, range(first, first + lanes)) if count > lanes else indices
        own_table = repeated(builder, table, lanes // 16) if lanes > 16 else table
        parts.append(call_llvm(builder, name, ir.VectorType(I8, lanes), [own_table, part]))
    return joined(builder, parts)


def look_up(builder: Builder, table: Sequence[int], indices: Value) -> Value:
    """Entries of a table of 16 bytes, by indices from 0 to 15."""
    entries, count = lanes_of(I8, table), indices.type.count
    if count < 16:
        wide = shuffled(builder, indices, indices, [lane % count for lane in range(16)])
        found = look_up(builder, table, wide)
        return shuffled(builder, found, found, range(count))
    if HAS_512_BITS and count >= 64:
        return _in_registers(builder, "llvm.x86.avx512.pshuf.b.512", 64, entries, indices)
    if HAS_AVX2 and count >= 32:
        return _in_registers(builder, "llvm.x86.avx2.pshuf.b", 32, entries, indices)
    if HAS_AVX2:
        return _in_registers(builder, "llvm.x86.ssse3.pshuf.b.128", 16, entries, indices)
    if IS_ARM:
        return _in_registers(builder, "llvm.aarch64.neon.tbl1.v16i8", 16, entries, indices)
    found = same(indices.type, table[0])
    for index, entry in enumerate(table[1:], 1):
        is_here = builder.icmp_unsigned("==", indices, same(indices.type, index))
        found = builder.select(is_here, same(indices.type, entry), found)
    return found


def make_table(table: Sequence[int]) -> Any:
    """A function from lanes of i32, from 0 to 15, to entries of a table of signed bytes as f32."""

    @instruction(lambda value: value.of("f32")(value))
    def entry(builder: Builder, value: Value) -> Value:
        found = look_up(builder, table, builder.trunc(value, vector_of(I8, value)))
        return builder.sitofp(builder.sext(found, value.type), vector_of(FLOAT, value))

    return entry


def has_bits(builder: Builder, vector: Value, bits: Sequence[int]) -> Value:
    """A mask of the bytes in which a bit, a mask of its own for each byte, is set."""
    chosen = builder.and_(vector, lanes_of(I8, bits))
    return builder.icmp_unsigned("!=", chosen, same(vector.type, 0))


def spread_bits(builder: Builder, packed: Value, byte_numbers: Sequence[int]) -> Value:
    """A mask: of each of these bytes of a vector the eight bits, the lowest one first."""
    wide = shuffled(builder, packed, packed, [number for number in byte_numbers for _ in range(8)])
    return has_bits(builder, wide, [1 << bit for _ in byte_numbers for bit in range(8)])


def add_where(builder: Builder, mask: Value, codes: Value, bit: int) -> Value:
    """Codes, with a bit set that is not set in any of them where a mask says so."""
    if HAS_512_BITS:
        return builder.select(mask, builder.add(codes, same(codes.type, bit)), codes)
    return builder.or_(codes, builder.and_(builder.sext(mask, codes.type), same(codes.type, bit)))


def negated_where(builder: Builder, mask: Value, codes: Value) -> Value:
    if HAS_512_BITS:
        return builder.select(mask, builder.sub(same(codes.type, 0), codes), codes)
    signs = builder.sext(mask, codes.type)
    return builder.sub(builder.xor(codes, signs), signs)


def constant_bytes(builder: Builder, name: str, values: bytes) -> Value:
    """The address of bytes that are part of the compiled code, aligned for whole registers."""
    module = builder.module
    held: Any = module.globals.get(name)
    if held is None:
        kind = ir.ArrayType(I8, len(values))
        held = ir.GlobalVariable(module, kind, name)
        held.initializer, held.linkage = ir.Constant(kind, bytearray(values)), "internal"
        held.global_constant, held.align = True, 64
    return builder.ptrtoint(held, I64)
