"""Codes of 2 to 8 bits that follow each other from the lowest bit on, times i16 numbers: exact sums in lanes of i32.

A word of 16 bits is shifted so that it begins with whole codes (its fields): two of 5, 6 or 8 bits, four of 3 or 4,
eight of 2. Lane j is the sum over words 2j and 2j + 1. Blocks of 32 codes are multiplied one, two or four at a time.

On x86, fields of all words become vectors of i16. The numbers lie in the same order: for each field and each half of
the words, 8 numbers of four blocks in turn. On Arm, two fields of a word become two bytes, and the numbers are parted
into high and low bytes, which `sdot` multiplies one after the other. Both give the same sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types

from lbrx.devices.cpu.simd.byte_codes import joined, load_bytes, look_up
from lbrx.devices.cpu.simd.coded_dot import sdot
from lbrx.devices.cpu.simd.emit import load_at, same, shuffled, store_at, vector_of
from lbrx.devices.cpu.simd.i16 import pairwise_products
from lbrx.devices.cpu.simd.instruction import I8, I16, I32, I64, Builder, Value, instruction
from lbrx.devices.cpu.simd.processor import HAS_SDOT
from lbrx.devices.cpu.simd.vectors import Vector

TOGETHER = 4  # blocks
NUMBERS_BYTES = 64 * TOGETHER  # of the numbers of four blocks
FIELDS = {2: 8, 3: 4, 4: 4, 5: 2, 6: 2, 8: 2}  # of a word, by the bits of a code
_CHUNK = 16  # bytes of words that are loaded at a time, unless codes need fewer


def sum_lanes(bits: int) -> int:
    """The lanes of the sums of a block."""
    return place_bytes(bits) // 4


def place_bytes(bits: int) -> int:
    """The bytes of a block in each vector of numbers: eight words, unless codes have fewer."""
    return 2 * min(8, 32 // FIELDS[bits])


# -- words that begin with whole codes ---------------------------------------------------------------------------------


def _words_of_two_halves(builder: Builder, codes: Value, blocks: int) -> list[Value]:
    """Codes of 8 bits: the first 16 bytes of every block, and the others."""
    source = load_at(builder, codes, ir.VectorType(I64, 4 * blocks))
    halves = ([4 * block + 2 * half + word for block in range(blocks) for word in (0, 1)] for half in (0, 1))
    words = ir.VectorType(I16, 8 * blocks)
    return [builder.bitcast(shuffled(builder, source, source, half), words) for half in halves]


def _spread_words(builder: Builder, codes: Value, bits: int, blocks: int, half: int) -> Value:
    """Eight words of every block, for codes of which no power of two fills a word. No byte behind the last is read."""
    step = FIELDS[bits] * bits  # bits from word to word
    block_bytes, first_byte = 4 * bits, half * step
    parts, pairs, lanes = [], [], ([8 * half + word for word in range(8)])
    for block in range(blocks):
        start = block * block_bytes
        loaded = min(max(start + block_bytes - _CHUNK, 0), start + first_byte)
        size = min(_CHUNK, blocks * block_bytes)
        parts.append(load_bytes(builder, codes, loaded, size))
        for lane in lanes:
            byte = start - loaded + lane * step // 8
            pairs += [size * block + byte, size * block + byte + 1]
    source = joined(builder, parts)
    words = builder.bitcast(shuffled(builder, source, source, pairs), ir.VectorType(I16, 8 * blocks))
    return builder.lshr(words, ir.Constant(words.type, [lane * step % 8 for lane in lanes] * blocks))


def _words(builder: Builder, codes: Value, bits: int, blocks: int) -> list[Value]:
    if bits == 8:
        return _words_of_two_halves(builder, codes, blocks)
    if bits in (2, 4):
        return [load_at(builder, codes, ir.VectorType(I16, 2 * bits * blocks))]
    return [_spread_words(builder, codes, bits, blocks, half) for half in range(4 // FIELDS[bits])]


# -- products ----------------------------------------------------------------------------------------------------------


def _word_fields(builder: Builder, words: Value, bits: int) -> list[Value]:
    """Every field as a vector of i16. Codes of 8 bits are signed."""
    if bits == 8:
        eight = same(words.type, 8)
        return [builder.ashr(builder.shl(words, eight), eight), builder.ashr(words, eight)]
    fields = []
    for number in range(FIELDS[bits]):
        moved = builder.lshr(words, same(words.type, number * bits)) if number else words
        is_alone = (number + 1) * bits == I16.width
        fields.append(moved if is_alone else builder.and_(moved, same(words.type, (1 << bits) - 1)))
    return fields


def _byte_fields(builder: Builder, words: Value, bits: int) -> list[Value]:
    """Pairs of fields as bytes, in the order of `_byte_pairs`."""
    own_bytes = ir.VectorType(I8, 2 * words.type.count)
    if bits in (2, 4, 8):
        source, mask = builder.bitcast(words, own_bytes), same(own_bytes, (1 << bits) - 1)
        shifts = range(0, I8.width, bits)
        moved = [builder.lshr(source, same(own_bytes, shift)) if shift else source for shift in shifts]
        return moved if bits == 8 else [builder.and_(each, mask) for each in moved]
    moved = [
        builder.bitcast(builder.lshr(words, same(words.type, number * bits)) if number else words, own_bytes)
        for number in range(FIELDS[bits])
    ]
    low_bytes = [byte + own_bytes.count * second for byte in range(0, own_bytes.count, 2) for second in (0, 1)]
    mask = same(own_bytes, (1 << bits) - 1)
    return [
        builder.and_(shuffled(builder, moved[first], moved[first + 1], low_bytes), mask)
        for first in range(0, FIELDS[bits], 2)
    ]


def _byte_pairs(bits: int) -> list[tuple[int, int]]:
    """The fields in the low and the high byte of every word."""
    if bits in (2, 4):
        per_byte = I8.width // bits
        return [(number, number + per_byte) for number in range(per_byte)]
    return [(first, first + 1) for first in range(0, FIELDS[bits], 2)]


def _add_products(builder: Builder, sums: Value, left: Value, right: Value) -> Value:
    """Four products of bytes added to every lane, 16 bytes at a time."""
    count = left.type.count
    if count < 16:
        zeros = same(left.type, 0)
        left, right = (shuffled(builder, each, zeros, range(16)) for each in (left, right))
        sums = shuffled(builder, sums, same(sums.type, 0), range(4))
    parts = []
    for first in range(0, max(count, 16), 16):
        own = [shuffled(builder, each, each, range(first, first + 16)) for each in (left, right)]
        own_sums = shuffled(builder, sums, sums, range(first // 4, first // 4 + 4))
        parts.append(sdot(builder, own_sums, *own))
    total = joined(builder, parts)
    return total if count >= 16 else shuffled(builder, total, total, range(count // 4))


def dot_bytes_of_planes(builder: Builder, codes: Sequence[Value], numbers: Value, blocks: int) -> Value:
    """Vectors of signed bytes times numbers whose high and low bytes lie apart."""
    sums = same(ir.VectorType(I32, codes[0].type.count // 4), 0)
    stride = codes[0].type.count // blocks * TOGETHER
    for plane in (0, 1):
        for number, vector in enumerate(codes):
            factors = load_at(builder, numbers, vector.type, stride * (2 * number + plane))
            sums = _add_products(builder, sums, vector, factors)
        if plane == 0:
            sums = builder.shl(sums, same(sums.type, 8))
    return sums


def dot_words(builder: Builder, fields: Sequence[Value], numbers: Value, blocks: int) -> Value:
    """Vectors of i16 times numbers in the order of the fields."""
    total = None
    stride = 2 * fields[0].type.count // blocks * TOGETHER
    for number, words in enumerate(fields):
        products = pairwise_products(builder, words, load_at(builder, numbers, words.type, stride * number))
        total = products if total is None else builder.add(total, products)
    return total


def _table_fields(builder: Builder, words: Value, table: Sequence[int]) -> list[Value]:
    """The entries of a table that codes of four bits stand for, as `_byte_fields` or `_word_fields`."""
    pairs = [look_up(builder, table, codes) for codes in _byte_fields(builder, words, 4)]
    if HAS_SDOT:
        return pairs
    low_and_high = [_word_fields(builder, builder.bitcast(pair, words.type), 8) for pair in pairs]
    return [low_and_high[number % 2][number // 2] for number in range(4)]


def _make_dot(bits: int, flips_top: bool, table: Sequence[int], blocks: int, place: int = 0) -> Any:
    """The products of so many blocks, which lie from a place of four on; the sums of the others are 0.

    With ``flips_top``, the highest bit of every code is turned around first. Codes of four bits may be indices of a
    table of signed bytes.
    """
    lanes = sum_lanes(bits)
    all_sums: Any = Vector("i32", lanes * TOGETHER)

    def take(builder: Builder, words: Value) -> list[Value]:
        if table:
            return _table_fields(builder, words, table)
        return (_byte_fields if HAS_SDOT else _word_fields)(builder, words, bits)

    top_bits = sum(1 << (bits * number + bits - 1) for number in range(I16.width // bits))

    @instruction(all_sums(types.int64, types.int64))
    def dot(builder: Builder, codes: Value, numbers: Value) -> Value:
        own_codes = builder.add(codes, ir.Constant(I64, 4 * bits * place))
        own_numbers = builder.add(numbers, ir.Constant(I64, place_bytes(bits) * place))
        words = _words(builder, own_codes, bits, blocks)
        if flips_top:
            words = [builder.xor(each, same(each.type, top_bits)) for each in words]
        fields = [field for each in words for field in take(builder, each)]
        sums = (dot_bytes_of_planes if HAS_SDOT else dot_words)(builder, fields, own_numbers, blocks)
        if blocks == TOGETHER:
            return sums
        order = [
            lane - lanes * place if 0 <= lane - lanes * place < sums.type.count else sums.type.count
            for lane in range(lanes * TOGETHER)
        ]
        return shuffled(builder, sums, same(sums.type, 0), order)

    return dot


def make_first_lanes(count: int) -> Any:
    """A function that replaces the lanes behind so many by zeros."""

    @instruction(lambda value: value(value))
    def first_lanes(builder: Builder, value: Value) -> Value:
        lanes = value.type.count
        order = [lane if lane < count else lanes for lane in range(lanes)]
        return shuffled(builder, value, same(value.type, 0.0), order)

    return first_lanes


class Dots(NamedTuple):
    """``dot(codes, numbers)`` of four blocks, of the first two, of the first, and of the third."""

    four: Any
    two: Any
    first: Any
    third: Any


def make_dots(bits: int, flips_top: bool, table: Sequence[int] = ()) -> Dots:
    return Dots(*(_make_dot(bits, flips_top, table, *which) for which in ((4,), (2,), (1,), (1, 2))))


# -- numbers in the order of the fields --------------------------------------------------------------------------------


def _order(fields: int, half: int, field: int) -> list[int]:
    """The numbers of one field of half of the words, or of all of them if they are no more than eight."""
    words = min(8, 32 // fields)
    return [fields * (words * half + word) + field for word in range(words)]


def _make_store_numbers(bits: int) -> Any:
    """Store 32 numbers of a block, one of four that lie together; ``target`` is where those of all four begin."""
    fields = FIELDS[bits]
    halves = max(1, 4 // fields)

    @instruction(lambda _target, _place, value: types.void(types.int64, types.int64, value))
    def store_numbers(builder: Builder, target: Value, place: Value, value: Value) -> None:
        words = builder.trunc(value, vector_of(I16, value))
        own = place_bytes(bits)
        base = builder.add(target, builder.mul(place, ir.Constant(I64, own)))

        def store_vector(vector: Value, number: int) -> None:
            store_at(builder, vector, builder.add(base, ir.Constant(I64, own * TOGETHER * number)))

        if not HAS_SDOT:
            orders = [_order(fields, half, field) for half in range(halves) for field in range(fields)]
            for number, order in enumerate(orders):
                store_vector(shuffled(builder, words, words, order), number)
            return
        pairs = [(half, pair) for half in range(halves) for pair in _byte_pairs(bits)]
        for number, (half, pair) in enumerate(pairs):
            low, high = (_order(fields, half, field) for field in pair)
            order = [index for both in zip(low, high, strict=True) for index in both]
            own_words = shuffled(builder, words, words, order)
            rounded = builder.add(own_words, same(own_words.type, 128))
            planes = builder.ashr(rounded, same(own_words.type, 8)), own_words
            for plane, each in enumerate(planes):
                store_vector(builder.trunc(each, vector_of(I8, each)), 2 * number + plane)

    return store_numbers


STORE_NUMBERS = {bits: _make_store_numbers(bits) for bits in (2, 3, 4, 8)}
"""By the bits of a code; those of 5 and 6 bits take the order of 8."""
