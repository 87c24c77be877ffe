"""Bytes of codes times numbers, 64 at a time: sums in sixteen lanes of i32, exact, each of four neighbours.

Numbers of 16 bits lie in memory as two planes of 64 bytes, in the form that the processor multiplies best:

- words: of every piece of eight numbers, those with even indices in the first plane and those with odd ones in the
  second. Codes are two in an i16, and taken apart by shifts.
- bytes: c = 256 high + low, both signed; the high bytes in the first plane and the low bytes in the second. Numbers are
  at most TOP, so that both fit. Arm multiplies all codes by bytes, AVX-512 with VNNI only codes without signs.

Numbers of 8 bits are words too, or one plane of bytes. x86 multiplies bytes without signs by bytes with signs: 128 is
added to codes with signs, and the second plane has -128 times the sum of every four numbers, which sums begin with.

Sums are the same in all forms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from lbrx.devices.cpu.simd.byte_codes import joined
from lbrx.devices.cpu.simd.emit import call_llvm, load_at, same, shuffled, store_at, vector_of
from lbrx.devices.cpu.simd.i16 import pairwise_products
from lbrx.devices.cpu.simd.instruction import I8, I16, I32, I64, Builder, Value, instruction
from lbrx.devices.cpu.simd.processor import DOT_BYTES, HAS_SDOT, HAS_VNNI
from lbrx.devices.cpu.simd.vectors import Vector

TOPS = {16: np.float32(32639.0), 8: np.float32(127.0)}
"""The largest number of a coded vector, by its bits: 127 * 256 + 127, or 127."""
TOP = TOPS[16]
PLANE_BYTES = 64
STEP_BYTES = 2 * PLANE_BYTES
SUMS: Any = Vector("i32", 16)


def in_bytes(is_signed: bool, bits: int = 16) -> bool:
    """Whether the numbers of so many bits that such codes are multiplied with lie in memory as bytes."""
    if bits == 8:
        return HAS_SDOT or DOT_BYTES > 0
    return HAS_SDOT or (HAS_VNNI and not is_signed)


def _words_dot(
    builder: Builder, total: Value | None, codes: Value, numbers: Value, offset: int, is_signed: bool
) -> Value:
    words = builder.bitcast(codes, ir.VectorType(I16, 32))
    eight, low_byte = same(words.type, 8), same(words.type, 255)
    if is_signed:
        even, odd = builder.ashr(builder.shl(words, eight), eight), builder.ashr(words, eight)
    else:
        even, odd = builder.and_(words, low_byte), builder.lshr(words, eight)
    planes = (load_at(builder, numbers, words.type, offset + at) for at in (0, PLANE_BYTES))
    for own, plane in zip((even, odd), planes, strict=True):
        if HAS_VNNI and total is not None:
            total = _add_dot(builder, "llvm.x86.avx512.vpdpwssd.512", total, own, plane)
        else:
            products = pairwise_products(builder, own, plane)
            total = products if total is None else builder.add(total, products)
    return total


def _add_dot(builder: Builder, name: str, sums: Value, codes: Value, numbers: Value) -> Value:
    factors = [builder.bitcast(value, sums.type) for value in (codes, numbers)]
    return call_llvm(builder, name, sums.type, [sums, *factors])


def _vnni_dot(builder: Builder, codes: Sequence[Value], numbers: Value) -> Value:
    sums = same(SUMS.llvm, 0)
    for plane in (0, PLANE_BYTES):
        if plane:
            sums = builder.shl(sums, same(sums.type, 8))
        for number, each in enumerate(codes):
            factors = load_at(builder, numbers, sums.type, STEP_BYTES * number + plane)
            sums = _add_dot(builder, "llvm.x86.avx512.vpdpbusd.512", sums, each, factors)
    return sums


def add_byte_products(builder: Builder, sums: Value, left: Value, right: Value) -> Value:
    """Four products of bytes, without signs by with signs, added to each lane of i32, on processors with DOT_BYTES."""
    parts, lanes = [], DOT_BYTES // 4
    for first in range(0, sums.type.count, lanes):
        own = shuffled(builder, sums, sums, range(first, first + lanes))
        factors = (
            shuffled(builder, each, each, range(4 * first, 4 * (first + lanes)))
            for each in (builder.bitcast(value, ir.VectorType(I8, 4 * sums.type.count)) for value in (left, right))
        )
        factors_in_lanes = [builder.bitcast(each, own.type) for each in factors]
        name = f"llvm.x86.avx512.vpdpbusd.{8 * DOT_BYTES}"
        parts.append(call_llvm(builder, name, own.type, [own, *factors_in_lanes]))
    return joined(builder, parts)


def _bytes_dot(builder: Builder, codes: Sequence[Value], numbers: Value, is_signed: bool) -> Value:
    """The same for numbers of 8 bits."""
    sums = same(SUMS.llvm, 0)
    for number, each in enumerate(codes):
        start = STEP_BYTES * number
        own = each
        if is_signed:
            own = builder.xor(each, same(each.type, 128))  # 128 more, without a sign
            sums = builder.add(sums, load_at(builder, numbers, sums.type, start + PLANE_BYTES))
        sums = add_byte_products(builder, sums, own, load_at(builder, numbers, sums.type, start))
    return sums


def sdot(builder: Builder, sums: Value, codes: Value, numbers: Value) -> Value:
    """Four products of signed bytes, added to each of four lanes of i32."""
    return call_llvm(builder, "llvm.aarch64.neon.sdot.v4i32.v16i8", sums.type, [sums, codes, numbers])


def _planes_dot(builder: Builder, codes: Sequence[Value], numbers: Value, bits: int) -> Value:
    quad, bytes16 = ir.VectorType(I32, 4), ir.VectorType(I8, 16)
    quarters = []
    for first in range(0, 64, 16):
        own = [shuffled(builder, each, each, range(first, first + 16)) for each in codes]
        sums = same(quad, 0)
        for plane in (0, PLANE_BYTES)[: bits // 8]:
            if plane:
                sums = builder.shl(sums, same(quad, 8))
            for number, part in enumerate(own):
                factors = load_at(builder, numbers, bytes16, STEP_BYTES * number + plane + first)
                sums = sdot(builder, sums, part, factors)
        quarters.append(sums)
    return joined(builder, quarters)


def dot_codes(builder: Builder, codes: Sequence[Value], numbers: Value, is_signed: bool, bits: int) -> Value:
    """Vectors of 64 codes, at most 127, times those of numbers of so many bits at an address: sums."""
    if HAS_SDOT:
        return _planes_dot(builder, codes, numbers, bits)
    if in_bytes(is_signed, bits):
        return _bytes_dot(builder, codes, numbers, is_signed) if bits == 8 else _vnni_dot(builder, codes, numbers)
    total = None
    for number, each in enumerate(codes):
        total = _words_dot(builder, total, each, numbers, STEP_BYTES * number, is_signed)
    return total


def make_store_numbers(is_signed: bool, bits: int = 16) -> Any:
    """Store the numbers that codes are multiplied with, which have signs or not."""
    planes_of = _byte_planes if in_bytes(is_signed, bits) else _word_planes
    if bits == 8 and in_bytes(is_signed, bits):
        planes_of = _corrected_bytes if is_signed and DOT_BYTES else _single_bytes

    @instruction(lambda _base, _offsets, value: types.void(types.int64, types.int64, value))
    def store_numbers(builder: Builder, base: Value, offsets: Value, value: Value) -> None:
        """32 lanes of i32 as four pieces of eight; ``offsets`` is the address of four int64, one for each piece."""
        planes = planes_of(builder, value)
        for piece in range(4):
            first = builder.add(base, load_at(builder, offsets, I64, 8 * piece))
            for number, plane in enumerate(planes):
                per_piece = plane.type.count // 4
                part = shuffled(builder, plane, plane, range(per_piece * piece, per_piece * (piece + 1)))
                store_at(builder, part, builder.add(first, ir.Constant(I64, PLANE_BYTES * number)))

    return store_numbers


# -- the planes of 32 numbers ------------------------------------------------------------------------------------------


def _word_planes(builder: Builder, value: Value) -> list[Value]:
    words = builder.trunc(value, vector_of(I16, value))
    return [shuffled(builder, words, words, range(first, value.type.count, 2)) for first in (0, 1)]


def _byte_planes(builder: Builder, value: Value) -> list[Value]:
    shifted = builder.ashr(builder.add(value, same(value.type, 128)), same(value.type, 8))
    return [builder.trunc(each, vector_of(I8, value)) for each in (shifted, value)]


def _single_bytes(builder: Builder, value: Value) -> list[Value]:
    return [builder.trunc(value, vector_of(I8, value))]


def _corrected_bytes(builder: Builder, value: Value) -> list[Value]:
    sums = value
    for _ in range(2):
        even, odd = (shuffled(builder, sums, sums, range(first, sums.type.count, 2)) for first in (0, 1))
        sums = builder.add(even, odd)
    return [*_single_bytes(builder, value), builder.mul(sums, same(sums.type, -128))]
