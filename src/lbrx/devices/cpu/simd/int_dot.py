"""Codes of quantized blocks times i16 numbers, in registers: sums in eight lanes of i32, exact.

Codes come as bytes, two in a word of 16 bits. The even and the odd ones are taken apart by shifts, and so the numbers
they are multiplied with lie in memory in that order: of 32 numbers first the 16 with even places, then the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types

from lbrx.devices.cpu.simd.vectors import I8, I32, I64, Vector, instruction

I16 = ir.IntType(16)
BYTES, HALF_BYTES = ir.VectorType(I8, 32), ir.VectorType(I8, 16)
WORDS, HALF_WORDS = ir.VectorType(I16, 16), ir.VectorType(I16, 8)
SUMS: Any = Vector("i32", 8)
Builder = Any
Value = Any


def load_vector(builder: Builder, address: Value, kind: Any, offset_bytes: int = 0) -> Value:
    """The vector of a type some bytes behind an address."""
    at = builder.add(address, ir.Constant(address.type, offset_bytes)) if offset_bytes else address
    return builder.load(builder.inttoptr(at, kind.as_pointer()), align=1)


def same(kind: Any, value: int) -> Value:
    return ir.Constant(kind, [value] * kind.count)


def shuffled(builder: Builder, first: Value, second: Value, places: list[int]) -> Value:
    return builder.shuffle_vector(first, second, ir.Constant(ir.VectorType(I32, len(places)), places))


def pairwise_products(builder: Builder, left: Value, right: Value) -> Value:
    """Words multiplied, neighbours added: half as many i32. One instruction on x86."""
    count = left.type.count
    wide = ir.VectorType(I32, count)
    products = builder.mul(builder.sext(left, wide), builder.sext(right, wide))
    even, odd = (shuffled(builder, products, products, list(range(at, count, 2))) for at in (0, 1))
    return builder.add(even, odd)


def _dot(builder: Builder, even: Value, odd: Value, numbers: Value) -> Value:
    """Words of codes with even and with odd places, times 32 numbers."""
    first = pairwise_products(builder, even, load_vector(builder, numbers, WORDS))
    return builder.add(first, pairwise_products(builder, odd, load_vector(builder, numbers, WORDS, 32)))


def _signed_dot(builder: Builder, codes: Value, numbers: Value) -> Value:
    """32 signed bytes times 32 numbers."""
    words, eight = builder.bitcast(codes, WORDS), same(WORDS, 8)
    return _dot(builder, builder.ashr(builder.shl(words, eight), eight), builder.ashr(words, eight), numbers)


def _nibble_dot(builder: Builder, words: Value, numbers: Value) -> Value:
    """The low four bits of the bytes in words times 32 numbers."""
    mask = same(WORDS, 15)
    even, odd = builder.and_(words, mask), builder.and_(builder.lshr(words, same(WORDS, 8)), mask)
    return _dot(builder, even, odd, numbers)


@instruction
def dot_bytes(_context: Any, _codes: Any, _numbers: Any) -> Any:
    """32 signed bytes."""

    def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
        return _signed_dot(builder, load_vector(builder, args[0], BYTES), args[1])

    return SUMS(types.int64, types.int64), generate


def _make_dot_nibbles(has_second: bool, stride: int = 32) -> Any:
    """Two blocks of 16 bytes, in whose low halves are codes 0-15 and in whose high halves codes 16-31.

    The first four lanes of the result are of the first block, the others of the second, or zeros without one. The 64
    numbers have been stored by `store_parted` with this stride.
    """

    def dot_nibbles(_context: Any, _first: Any, _second: Any, _numbers: Any) -> Any:
        def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
            first = load_vector(builder, args[0], HALF_WORDS)
            second = load_vector(builder, args[1], HALF_WORDS) if has_second else same(HALF_WORDS, 0)
            words = shuffled(builder, first, second, list(range(16)))
            total = None
            for place, bits in enumerate((0, 4, 8, 12)):  # even low, even high, odd low, odd high
                codes = builder.and_(builder.lshr(words, same(WORDS, bits)), same(WORDS, 15))
                products = pairwise_products(builder, codes, load_vector(builder, args[2], WORDS, stride * place))
                total = products if total is None else builder.add(total, products)
            return total

        return SUMS(types.int64, types.int64, types.int64), generate

    return instruction(dot_nibbles)


dot_two_blocks, dot_one_block = _make_dot_nibbles(has_second=True), _make_dot_nibbles(has_second=False)
dot_one_of_four_blocks = _make_dot_nibbles(has_second=False, stride=64)


def _make_dot_halves(is_high: bool) -> Any:
    def dot_halves(_context: Any, _codes: Any, _numbers: Any) -> Any:
        def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
            words = load_vector(builder, args[0], WORDS)
            return _nibble_dot(builder, builder.lshr(words, same(WORDS, 4)) if is_high else words, args[1])

        return SUMS(types.int64, types.int64), generate

    return instruction(dot_halves)


dot_low_halves, dot_high_halves = _make_dot_halves(is_high=False), _make_dot_halves(is_high=True)
"""32 codes of four bits, in the low or the high halves of 32 bytes."""


def _make_dot_six_bits(number: int) -> Any:
    """Codes 32 ``number`` to 32 ``number`` + 31 of half a block of Q6_K, less 32.

    The first four lanes of the result are of the first 16 codes, the others of the rest.
    """

    def dot_six_bits(_context: Any, _low: Any, _high: Any, _numbers: Any) -> Any:
        def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
            low = builder.bitcast(load_vector(builder, args[0], BYTES, 32 * (number % 2)), WORDS)
            high = builder.bitcast(load_vector(builder, args[1], BYTES), WORDS)
            if number >= 2:
                low = builder.lshr(low, same(WORDS, 4))
            left = 4 - 2 * number
            if left > 0:
                high = builder.shl(high, same(WORDS, left))
            elif left < 0:
                high = builder.lshr(high, same(WORDS, -left))
            codes = builder.or_(
                builder.and_(builder.bitcast(low, BYTES), same(BYTES, 15)),
                builder.and_(builder.bitcast(high, BYTES), same(BYTES, 48)),
            )
            return _signed_dot(builder, builder.sub(codes, same(BYTES, 32)), args[2])

        return SUMS(types.int64, types.int64, types.int64), generate

    return instruction(dot_six_bits)


DOT_SIX_BITS = tuple(_make_dot_six_bits(number) for number in range(4))


@instruction
def store_parted(_context: Any, _base: Any, _stride: Any, _odd: Any, value: Any) -> Any:
    """32 lanes of i32 as i16, in four pieces of 16 bytes: two with even places, a stride in bytes apart, and two with
    odd ones, which begin ``odd`` bytes after the others.

    With a stride of 16 and 32 bytes they are one run; with a stride of 32 and 64 bytes, the pieces of two blocks take
    turns.
    """

    def generate(target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
        base, stride, odd, lanes = args
        words = builder.trunc(lanes, ir.VectorType(I16, 32))
        places = base, builder.add(base, stride), builder.add(base, odd), builder.add(builder.add(base, odd), stride)
        for at, first in zip(places, (0, 16, 1, 17), strict=True):
            part = shuffled(builder, words, words, list(range(first, first + 16, 2)))
            builder.store(part, builder.inttoptr(at, HALF_WORDS.as_pointer()), align=1)
        return target.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, value), generate


def _make_six_bit_numbers(is_low: bool) -> Any:
    """The eight scales, or the eight minimums, of Q4_K's 12 bytes as f32."""

    def six_bit_numbers(_context: Any, _packed: Any) -> Any:
        kind = SUMS.of("f32")

        def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
            def constant(value: int) -> Value:
                return ir.Constant(I32, value)

            own = load_vector(builder, args[0], I32, 4 if is_low else 0)
            shared = load_vector(builder, args[0], I32, 8)
            if is_low:
                shared = builder.lshr(shared, constant(4))
            first = builder.and_(own, constant(0x3F3F3F3F))
            top = builder.and_(builder.lshr(own, constant(2)), constant(0x30303030))
            second = builder.or_(builder.and_(shared, constant(0x0F0F0F0F)), top)
            both = builder.or_(builder.zext(first, I64), builder.shl(builder.zext(second, I64), ir.Constant(I64, 32)))
            return builder.uitofp(builder.bitcast(both, ir.VectorType(I8, 8)), kind.llvm)

        return kind(types.int64), generate

    return instruction(six_bit_numbers)


six_bit_scales, six_bit_minimums = _make_six_bit_numbers(is_low=False), _make_six_bit_numbers(is_low=True)


def _make_shuffle(places: list[int]) -> Any:
    """Eight lanes from these places of a vector."""

    def shuffle(_context: Any, value: Any) -> Any:
        def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
            return shuffled(builder, args[0], args[0], places)

        return SUMS.of(value.element)(value), generate

    return instruction(shuffle)


SPREAD_LANES = tuple(_make_shuffle([lane] * 8) for lane in range(8))
LANE_PAIRS = tuple(_make_shuffle([2 * pair] * 4 + [2 * pair + 1] * 4) for pair in range(8))
"""The first lane of a pair in four lanes, and the second in the others."""
PARTED_LANES = (0, 2, 4, 6, 1, 3, 5, 7)
"""The order in which the two lanes of a pair lie in different halves of a register: spreading them is one step then."""
PARTED_PAIRS = tuple(_make_shuffle([pair] * 4 + [4 + pair] * 4) for pair in range(4))
"""What `LANE_PAIRS` are, of lanes in the order of `PARTED_LANES`."""


def _make_block_scales(block_bytes: int, order: Sequence[int]) -> Any:
    """The f16 at the beginnings of eight blocks, as f32, in some order."""

    def block_scales(_context: Any, _blocks: Any) -> Any:
        kind = SUMS.of("f32")

        def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
            gathered = ir.Constant(ir.VectorType(I16, 8), [0] * 8)
            for lane, number in enumerate(order):
                scale = load_vector(builder, args[0], I16, block_bytes * number)
                gathered = builder.insert_element(gathered, scale, ir.Constant(I32, lane))
            return builder.fpext(builder.bitcast(gathered, ir.VectorType(ir.HalfType(), 8)), kind.llvm)

        return kind(types.int64), generate

    return instruction(block_scales)


parted_scales_of_18_bytes, scales_of_34_bytes = _make_block_scales(18, PARTED_LANES), _make_block_scales(34, range(8))


def _make_prefetch(lines: int, level: int = 1) -> Any:
    """Ask for some cache lines of 64 bytes that will be read later, in a level of the cache; an address beyond the end
    does no harm.
    """

    def prefetch(_context: Any, _address: Any) -> Any:
        def generate(target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
            pointer = I8.as_pointer()
            function = builder.module.globals.get("llvm.prefetch.p0") or ir.Function(
                builder.module, ir.FunctionType(ir.VoidType(), [pointer, I32, I32, I32]), "llvm.prefetch.p0"
            )
            for line in range(lines):
                at = builder.add(args[0], ir.Constant(I64, 64 * line))
                options = (ir.Constant(I32, value) for value in (0, 4 - level, 1))
                builder.call(function, [builder.inttoptr(at, pointer), *options])
            return target.get_dummy_value()

        return types.void(types.int64), generate

    return instruction(prefetch)


prefetch_line, prefetch_3_lines, prefetch_5_lines = _make_prefetch(1), _make_prefetch(3), _make_prefetch(5)
prefetch_3_lines_to_l2 = _make_prefetch(3, level=2)
