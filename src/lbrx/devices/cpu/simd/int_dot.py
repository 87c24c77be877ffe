"""Codes of quantized blocks times i16 numbers, in registers: sums in eight lanes of i32, exact.

Codes come as bytes, two in an i16. The even and the odd ones are taken apart by shifts, and so the numbers they are
multiplied with lie in memory in that order: of 32 numbers first the 16 with even indices, then the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types

from lbrx.devices.cpu.simd.emit import load_at, same, shuffled, store_at, vector_of
from lbrx.devices.cpu.simd.i16 import pairwise_products
from lbrx.devices.cpu.simd.instruction import HALF, I8, I16, I32, I64, Builder, Value, instruction
from lbrx.devices.cpu.simd.vectors import Vector

BYTES = ir.VectorType(I8, 32)
I16X16, I16X8 = ir.VectorType(I16, 16), ir.VectorType(I16, 8)
SUMS: Any = Vector("i32", 8)
FLOATS: Any = SUMS.of("f32")
TWO_ADDRESSES, THREE_ADDRESSES = (SUMS(*[types.int64] * count) for count in (2, 3))


def sum_of_products(builder: Builder, codes: Sequence[Value], numbers: Value, offset: int, stride: int) -> Value:
    """Vectors of codes times those of numbers, which lie a stride in bytes apart, added."""
    total = None
    for number, words in enumerate(codes):
        factors = load_at(builder, numbers, words.type, offset + stride * number)
        products = pairwise_products(builder, words, factors)
        total = products if total is None else builder.add(total, products)
    return total


def _signed_dot(builder: Builder, codes: Value, numbers: Value) -> Value:
    """32 signed bytes times 32 numbers."""
    words, eight = builder.bitcast(codes, I16X16), same(I16X16, 8)
    even, odd = builder.ashr(builder.shl(words, eight), eight), builder.ashr(words, eight)
    return sum_of_products(builder, (even, odd), numbers, 0, 32)


def shifted_codes(builder: Builder, words: Value, shifts: Sequence[int], mask: int = 15) -> list[Value]:
    """Some bits of every i16, after each of these shifts."""
    return [
        builder.and_(builder.lshr(words, same(words.type, bits)) if bits else words, same(words.type, mask))
        for bits in shifts
    ]


@instruction(TWO_ADDRESSES)
def dot_bytes(builder: Builder, codes: Value, numbers: Value) -> Value:
    """32 signed bytes."""
    return _signed_dot(builder, load_at(builder, codes, BYTES), numbers)


def _make_dot_nibbles(has_second: bool, stride: int = 32) -> Any:
    """Two blocks of 16 bytes, in whose low halves are codes 0-15 and in whose high halves codes 16-31.

    The first four lanes of the result are of the first block, the others of the second, or zeros without one. The 64
    numbers have been stored by `store_parted` with this stride.
    """

    @instruction(THREE_ADDRESSES)
    def dot_nibbles(builder: Builder, first: Value, second: Value, numbers: Value) -> Value:
        more = load_at(builder, second, I16X8) if has_second else same(I16X8, 0)
        words = shuffled(builder, load_at(builder, first, I16X8), more, range(16))
        codes = shifted_codes(builder, words, (0, 4, 8, 12))  # even low, even high, odd low, odd high
        return sum_of_products(builder, codes, numbers, 0, stride)

    return dot_nibbles


dot_two_blocks, dot_one_block = _make_dot_nibbles(has_second=True), _make_dot_nibbles(has_second=False)
dot_one_of_four_blocks = _make_dot_nibbles(has_second=False, stride=64)


def _make_dot_halves(first_bit: int) -> Any:
    @instruction(TWO_ADDRESSES)
    def dot_halves(builder: Builder, codes: Value, numbers: Value) -> Value:
        words = load_at(builder, codes, I16X16)
        return sum_of_products(builder, shifted_codes(builder, words, (first_bit, first_bit + 8)), numbers, 0, 32)

    return dot_halves


dot_low_halves, dot_high_halves = _make_dot_halves(0), _make_dot_halves(4)
"""32 codes of four bits, in the low or the high halves of 32 bytes."""


def _make_dot_six_bits(number: int) -> Any:
    """Codes 32 ``number`` to 32 ``number`` + 31 of half a block of Q6_K, less 32.

    The first four lanes of the result are of the first 16 codes, the others of the rest.
    """

    @instruction(THREE_ADDRESSES)
    def dot_six_bits(builder: Builder, low: Value, high: Value, numbers: Value) -> Value:
        bottom, top = load_at(builder, low, I16X16, 32 * (number % 2)), load_at(builder, high, I16X16)
        if number >= 2:
            bottom = builder.lshr(bottom, same(I16X16, 4))
        left = 4 - 2 * number
        if left:
            top = (builder.shl if left > 0 else builder.lshr)(top, same(I16X16, abs(left)))
        codes = builder.or_(
            builder.and_(builder.bitcast(bottom, BYTES), same(BYTES, 15)),
            builder.and_(builder.bitcast(top, BYTES), same(BYTES, 48)),
        )
        return _signed_dot(builder, builder.sub(codes, same(BYTES, 32)), numbers)

    return dot_six_bits


DOT_SIX_BITS = tuple(_make_dot_six_bits(number) for number in range(4))


@instruction(lambda _base, _stride, _odd, value: types.void(types.int64, types.int64, types.int64, value))
def store_parted(builder: Builder, base: Value, stride: Value, odd: Value, value: Value) -> None:
    """32 lanes of i32 as i16, in four pieces of 16 bytes: two with even indices, a stride in bytes apart, and two with
    odd ones, which begin ``odd`` bytes after the others.

    With a stride of 16 and 32 bytes they are one run; with a stride of 32 and 64 bytes, the pieces of two blocks take
    turns.
    """
    words, odd_base = builder.trunc(value, vector_of(I16, value)), builder.add(base, odd)
    addresses = base, builder.add(base, stride), odd_base, builder.add(odd_base, stride)
    for address, first in zip(addresses, (0, 16, 1, 17), strict=True):
        store_at(builder, shuffled(builder, words, words, range(first, first + 16, 2)), address)


def _make_six_bit_numbers(is_low: bool) -> Any:
    """The eight scales, or the eight minimums, of Q4_K's 12 bytes as f32."""

    @instruction(FLOATS(types.int64))
    def six_bit_numbers(builder: Builder, packed: Value) -> Value:
        def constant(value: int) -> Value:
            return ir.Constant(I32, value)

        own, shared = load_at(builder, packed, I32, 4 if is_low else 0), load_at(builder, packed, I32, 8)
        if is_low:
            shared = builder.lshr(shared, constant(4))
        first = builder.and_(own, constant(0x3F3F3F3F))
        top = builder.and_(builder.lshr(own, constant(2)), constant(0x30303030))
        second = builder.or_(builder.and_(shared, constant(0x0F0F0F0F)), top)
        both = builder.or_(builder.zext(first, I64), builder.shl(builder.zext(second, I64), ir.Constant(I64, 32)))
        return builder.uitofp(builder.bitcast(both, ir.VectorType(I8, 8)), FLOATS.llvm)

    return six_bit_numbers


six_bit_scales, six_bit_minimums = _make_six_bit_numbers(is_low=False), _make_six_bit_numbers(is_low=True)


def make_shuffle(lanes: Sequence[int]) -> Any:
    """A function that takes these lanes of a vector."""

    @instruction(lambda value: Vector(value.element, len(lanes))(value))
    def shuffle(builder: Builder, value: Value) -> Value:
        return shuffled(builder, value, value, lanes)

    return shuffle


SPREAD_LANES = tuple(make_shuffle([lane] * 8) for lane in range(8))
LANE_PAIRS = tuple(make_shuffle([2 * pair] * 4 + [2 * pair + 1] * 4) for pair in range(8))
"""The first lane of a pair in four lanes, and the second in the others."""
PARTED_LANES = (0, 2, 4, 6, 1, 3, 5, 7)
"""The order in which the two lanes of a pair lie in different halves of a register: spreading them is one step then."""
PARTED_PAIRS = tuple(make_shuffle([pair] * 4 + [4 + pair] * 4) for pair in range(4))
"""What `LANE_PAIRS` are, of lanes in the order of `PARTED_LANES`."""


def widened_halves(builder: Builder, bits: Value) -> Value:
    """The f16 with these bits as f32."""
    return builder.fpext(builder.bitcast(bits, vector_of(HALF, bits)), FLOATS.llvm)


def _make_block_scales(block_bytes: int, order: Sequence[int]) -> Any:
    """The f16 at the beginnings of eight blocks, as f32, in some order."""

    @instruction(FLOATS(types.int64))
    def block_scales(builder: Builder, blocks: Value) -> Value:
        gathered = same(I16X8, 0)
        for lane, number in enumerate(order):
            scale = load_at(builder, blocks, I16, block_bytes * number)
            gathered = builder.insert_element(gathered, scale, ir.Constant(I32, lane))
        return widened_halves(builder, gathered)

    return block_scales


parted_scales_of_18_bytes, scales_of_34_bytes = _make_block_scales(18, PARTED_LANES), _make_block_scales(34, range(8))
