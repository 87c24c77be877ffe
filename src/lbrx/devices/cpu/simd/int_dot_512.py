"""Q4_0 and Q4_K times a vector in registers of 512 bits: codes of four blocks are multiplied at a time.

Of 64 bytes of codes, two in a byte, the codes are taken apart by shifts into four vectors of 32 i16. The numbers that
they are multiplied with lie in memory as four such vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types

from lbrx.devices.cpu.simd.emit import load_at, shuffled
from lbrx.devices.cpu.simd.i16 import I16X32, I32X16
from lbrx.devices.cpu.simd.instruction import I8, I32, I64, Builder, Value, instruction
from lbrx.devices.cpu.simd.int_dot import (
    FLOATS,
    I16X8,
    make_shuffle,
    shifted_codes,
    sum_of_products,
    widened_halves,
)

TWO_ADDRESSES = I32X16(types.int64, types.int64)


# -- Q4_0: a block is an f16 and 16 bytes with codes 0-15 in their low halves and 16-31 in the high ones ---------------


@instruction(TWO_ADDRESSES)
def dot_four_blocks(builder: Builder, blocks: Value, numbers: Value) -> Value:
    """Four blocks of 18 bytes times 128 numbers: sums in four lanes for each."""
    most, last = load_at(builder, blocks, I16X32.llvm), load_at(builder, blocks, I16X8, 56)
    wide_last = shuffled(builder, last, last, list(range(8)) * 4)
    lanes = [9 * block + 1 + word for block in range(3) for word in range(8)] + list(range(32, 40))
    words = shuffled(builder, most, wide_last, lanes)
    return sum_of_products(builder, shifted_codes(builder, words, (0, 4, 8, 12)), numbers, 0, 64)


@instruction(FLOATS(types.int64))
def scales_of_eight_blocks(builder: Builder, blocks: Value) -> Value:
    """The f16 at the beginnings of eight blocks of 18 bytes, as f32."""
    first, second = (load_at(builder, blocks, I16X32.llvm, offset) for offset in (0, 72))
    return widened_halves(builder, shuffled(builder, first, second, [0, 9, 18, 27, 32, 41, 50, 59]))


# -- Q4_K: two f16, eight scales and eight minimums of six bits, and 32 bytes for each pair of blocks of 32 ------------


def _make_dot_halves(mask: int, offset: int) -> Any:
    """The low or the high halves of 64 bytes, these times 16: sums of two blocks, in eight lanes for each."""

    @instruction(TWO_ADDRESSES)
    def dot_halves(builder: Builder, codes: Value, numbers: Value) -> Value:
        words = load_at(builder, codes, I16X32.llvm)
        return sum_of_products(builder, shifted_codes(builder, words, (0, 8), mask), numbers, offset, 64)

    return dot_halves


dot_low_halves_of_64, dot_high_halves_of_64 = _make_dot_halves(0x0F, 0), _make_dot_halves(0xF0, 128)


def _make_six_bit_numbers(indices: Sequence[int]) -> Any:
    """Eight of the numbers in 12 bytes as f32, by indices into scales 0-3, minimums 0-3, and 4-7 of each."""

    @instruction(FLOATS(types.int64))
    def six_bit_numbers(builder: Builder, packed: Value) -> Value:
        def every_byte(value: int) -> Value:
            return ir.Constant(I64, value * 0x0101010101010101)

        own = load_at(builder, packed, I64)  # scales and minimums 0-3, and two bits more of 4-7 of each
        shared = builder.zext(load_at(builder, packed, I32, 8), I64)  # four bits of 4-7 of each
        both = builder.or_(shared, builder.shl(shared, ir.Constant(I64, 28)))
        top = builder.and_(builder.lshr(own, ir.Constant(I64, 2)), every_byte(0x30))
        parts = builder.and_(own, every_byte(0x3F)), builder.or_(builder.and_(both, every_byte(0x0F)), top)
        numbers = ir.Constant(ir.VectorType(I64, 2), ir.Undefined)
        for lane, part in enumerate(parts):
            numbers = builder.insert_element(numbers, part, ir.Constant(I32, lane))
        codes = builder.bitcast(numbers, ir.VectorType(I8, 16))
        return builder.uitofp(shuffled(builder, codes, codes, indices), FLOATS.llvm)

    return six_bit_numbers


SCALE_ORDER = (0, 1, 4, 5, 2, 3, 6, 7)
"""The order of scales in which spreading those of two blocks is one step."""
ordered_scales = _make_six_bit_numbers([8 * (block // 4) + block % 4 for block in SCALE_ORDER])
minimums = _make_six_bit_numbers([8 * (block // 4) + block % 4 + 4 for block in range(8)])

FOUR_LANES = tuple(make_shuffle([first + lane // 4 for lane in range(16)]) for first in (0, 4))
"""Four lanes of eight, in four lanes each."""
halves_twice = make_shuffle([*range(4), *range(4), *range(4, 8), *range(4, 8)])
ONE_OF_FOUR = tuple(make_shuffle([lane // 4 * 4 + number for lane in range(16)]) for number in range(4))
"""One lane of every four, in all of them."""
