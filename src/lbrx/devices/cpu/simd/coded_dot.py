"""Bytes of codes times i16 numbers, 64 at a time: sums in sixteen lanes of i32, exact, each of four neighbours.

The numbers lie in memory as two planes of 64 bytes for the form that the processor multiplies best:

- of every piece of eight numbers, those with even indices in the first plane and those with odd ones in the second.
  Codes are two in an i16, and taken apart by shifts.
- with HAS_SDOT, the high bytes in the first plane and the low bytes, signed, in the second: c = 256 high + low. Numbers
  are at most TOP, so that both are i8.

Sums are the same in both forms.
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
from lbrx.devices.cpu.simd.processor import HAS_SDOT
from lbrx.devices.cpu.simd.vectors import Vector

TOP = np.float32(32639.0)
"""The largest i16 number of a coded vector: 127 * 256 + 127."""
PLANE_BYTES = 64
STEP_BYTES = 2 * PLANE_BYTES
SUMS: Any = Vector("i32", 16)


def _words_dot(builder: Builder, codes: Value, numbers: Value, offset: int, is_signed: bool) -> Value:
    words = builder.bitcast(codes, ir.VectorType(I16, 32))
    eight, low_byte = same(words.type, 8), same(words.type, 255)
    if is_signed:
        even, odd = builder.ashr(builder.shl(words, eight), eight), builder.ashr(words, eight)
    else:
        even, odd = builder.and_(words, low_byte), builder.lshr(words, eight)
    planes = (load_at(builder, numbers, words.type, offset + at) for at in (0, PLANE_BYTES))
    products = [pairwise_products(builder, *pair) for pair in zip((even, odd), planes, strict=True)]
    return builder.add(*products)


def sdot(builder: Builder, sums: Value, codes: Value, numbers: Value) -> Value:
    """Four products of signed bytes, added to each of four lanes of i32."""
    return call_llvm(builder, "llvm.aarch64.neon.sdot.v4i32.v16i8", sums.type, [sums, codes, numbers])


def _planes_dot(builder: Builder, codes: Sequence[Value], numbers: Value) -> Value:
    quad, bytes16 = ir.VectorType(I32, 4), ir.VectorType(I8, 16)
    quarters = []
    for first in range(0, 64, 16):
        own = [shuffled(builder, each, each, range(first, first + 16)) for each in codes]
        sums = same(quad, 0)
        for plane in (0, PLANE_BYTES):
            if plane:
                sums = builder.shl(sums, same(quad, 8))
            for number, part in enumerate(own):
                factors = load_at(builder, numbers, bytes16, STEP_BYTES * number + plane + first)
                sums = sdot(builder, sums, part, factors)
        quarters.append(sums)
    return joined(builder, quarters)


def dot_codes(builder: Builder, codes: Sequence[Value], numbers: Value, is_signed: bool) -> Value:
    """Vectors of 64 codes, at most 127, times those of numbers at an address: their sums, added lane by lane."""
    if HAS_SDOT:
        return _planes_dot(builder, codes, numbers)
    total = None
    for number, each in enumerate(codes):
        products = _words_dot(builder, each, numbers, STEP_BYTES * number, is_signed)
        total = products if total is None else builder.add(total, products)
    return total


@instruction(lambda _base, _offsets, value: types.void(types.int64, types.int64, value))
def store_numbers(builder: Builder, base: Value, offsets: Value, value: Value) -> None:
    """32 lanes of i32 as four pieces of eight numbers; ``offsets`` is the address of four int64, one for each piece."""
    if HAS_SDOT:
        shifted = builder.ashr(builder.add(value, same(value.type, 128)), same(value.type, 8))
        planes = builder.trunc(shifted, vector_of(I8, value)), builder.trunc(value, vector_of(I8, value))
        lanes = [range(8), range(8)]
    else:
        planes = (builder.trunc(value, vector_of(I16, value)),) * 2
        lanes = [range(0, 8, 2), range(1, 8, 2)]
    for piece in range(4):
        first = builder.add(base, load_at(builder, offsets, I64, 8 * piece))
        for number in range(2):
            taken = [8 * piece + lane for lane in lanes[number]]
            part = shuffled(builder, planes[number], planes[number], taken)
            store_at(builder, part, builder.add(first, ir.Constant(I64, PLANE_BYTES * number)))
