"""Q4_0 and Q4_K times a vector in registers of 512 bits: codes of four blocks are multiplied at a time.

Of 64 bytes of codes, two in a byte, the words are taken apart by shifts into four vectors of 32 words. The numbers that
they are multiplied with lie in memory as four such vectors.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from lbrx.devices.cpu.simd.i16 import PANEL_SUMS as WIDE_SUMS
from lbrx.devices.cpu.simd.int_dot import I16, SUMS, load_vector, pairwise_products, same, shuffled
from lbrx.devices.cpu.simd.vectors import I8, I32, I64, instruction

Builder = Any
Value = Any
WIDE_WORDS, BLOCK_WORDS = ir.VectorType(I16, 32), ir.VectorType(I16, 8)
WIDE_FLOATS, EIGHT_FLOATS = WIDE_SUMS.of("f32"), SUMS.of("f32")


def _sum_of_products(builder: Builder, codes: list[Value], numbers: Value, first: int) -> Value:
    """Vectors of words times those of numbers, from one of these on, added."""
    total = None
    for place, words in enumerate(codes, first):
        products = pairwise_products(builder, words, load_vector(builder, numbers, WIDE_WORDS, 64 * place))
        total = products if total is None else builder.add(total, products)
    return total


def _masked(builder: Builder, words: Value, shift: int, mask: int) -> Value:
    shifted = builder.lshr(words, same(WIDE_WORDS, shift)) if shift else words
    return builder.and_(shifted, same(WIDE_WORDS, mask))


# -- Q4_0: a block is an f16 and 16 bytes with codes 0-15 in their low halves and 16-31 in the high ones ---------------


@instruction
def dot_four_blocks(_context: Any, _blocks: Any, _numbers: Any) -> Any:
    """Four blocks of 18 bytes times 128 numbers: sums in four lanes for each."""

    def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
        most = load_vector(builder, args[0], WIDE_WORDS)
        last = load_vector(builder, args[0], BLOCK_WORDS, 56)
        wide_last = shuffled(builder, last, last, list(range(8)) * 4)
        places = [9 * block + 1 + word for block in range(3) for word in range(8)] + list(range(32, 40))
        words = shuffled(builder, most, wide_last, places)
        codes = [_masked(builder, words, shift, 15) for shift in (0, 4, 8, 12)]
        return _sum_of_products(builder, codes, args[1], 0)

    return WIDE_SUMS(types.int64, types.int64), generate


@instruction
def scales_of_eight_blocks(_context: Any, _blocks: Any) -> Any:
    """The f16 at the beginnings of eight blocks of 18 bytes, as f32."""

    def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
        first, second = (load_vector(builder, args[0], WIDE_WORDS, at) for at in (0, 72))
        halves = shuffled(builder, first, second, [0, 9, 18, 27, 32, 41, 50, 59])
        return builder.fpext(builder.bitcast(halves, ir.VectorType(ir.HalfType(), 8)), EIGHT_FLOATS.llvm)

    return EIGHT_FLOATS(types.int64), generate


# -- Q4_K: two f16, eight scales and eight minimums of six bits, and 32 bytes for each pair of blocks of 32 ------------


def _make_dot_halves(mask: int, first: int) -> Any:
    """The low or the high halves of 64 bytes, these times 16: sums of two blocks, in eight lanes for each."""

    def dot_halves(_context: Any, _codes: Any, _numbers: Any) -> Any:
        def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
            words = load_vector(builder, args[0], WIDE_WORDS)
            return _sum_of_products(builder, [_masked(builder, words, bits, mask) for bits in (0, 8)], args[1], first)

        return WIDE_SUMS(types.int64, types.int64), generate

    return instruction(dot_halves)


dot_low_halves_of_64, dot_high_halves_of_64 = _make_dot_halves(0x0F, 0), _make_dot_halves(0xF0, 2)


def _make_six_bit_numbers(places: list[int]) -> Any:
    """Eight of the numbers in 12 bytes as f32: those at some places of scales 0-3, minimums 0-3, and 4-7 of each."""

    def six_bit_numbers(_context: Any, _packed: Any) -> Any:
        def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
            def every_byte(value: int) -> Value:
                return ir.Constant(I64, value * 0x0101010101010101)

            own = load_vector(builder, args[0], I64)  # scales and minimums 0-3, and two bits more of 4-7 of each
            shared = builder.zext(load_vector(builder, args[0], I32, 8), I64)  # four bits of 4-7 of each
            both = builder.or_(shared, builder.shl(shared, ir.Constant(I64, 28)))
            top = builder.and_(builder.lshr(own, ir.Constant(I64, 2)), every_byte(0x30))
            parts = builder.and_(own, every_byte(0x3F)), builder.or_(builder.and_(both, every_byte(0x0F)), top)
            numbers = ir.Constant(ir.VectorType(I64, 2), ir.Undefined)
            for place, part in enumerate(parts):
                numbers = builder.insert_element(numbers, part, ir.Constant(I32, place))
            codes = builder.bitcast(numbers, ir.VectorType(I8, 16))
            return builder.uitofp(shuffled(builder, codes, codes, places), EIGHT_FLOATS.llvm)

        return EIGHT_FLOATS(types.int64), generate

    return instruction(six_bit_numbers)


SCALE_ORDER = (0, 1, 4, 5, 2, 3, 6, 7)
"""The order of scales in which spreading those of two blocks is one step."""
ordered_scales = _make_six_bit_numbers([8 * (block // 4) + block % 4 for block in SCALE_ORDER])
minimums = _make_six_bit_numbers([8 * (block // 4) + block % 4 + 4 for block in range(8)])


def _make_spread(lanes: list[int]) -> Any:
    """Sixteen lanes from these places of a vector."""

    def spread(_context: Any, value: Any) -> Any:
        def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
            return shuffled(builder, args[0], args[0], lanes)

        return WIDE_FLOATS(value), generate

    return instruction(spread)


FOUR_LANES = tuple(_make_spread([first + lane // 4 for lane in range(16)]) for first in (0, 4))
"""Four lanes of eight, in four lanes each."""
halves_twice = _make_spread([*range(4), *range(4), *range(4, 8), *range(4, 8)])
ONE_OF_FOUR = tuple(_make_spread([lane // 4 * 4 + number for lane in range(16)]) for number in range(4))
"""One lane of every four, in all of them."""
