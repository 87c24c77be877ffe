"""Codes that name groups of four or eight small integers in a codebook: all IQ1, IQ2 and IQ3 types.

A codebook is part of the compiled code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types

from lbrx.devices.cpu.kernels.groups.group import HALVES_OF_16, HALVES_OF_32, Codes, Group
from lbrx.devices.cpu.kernels.groups.scales import F32X8, F32X16, times_half
from lbrx.devices.cpu.simd.byte_codes import (
    constant_bytes,
    field,
    has_bits,
    joined,
    lanes_of,
    load_bytes,
    negated_where,
    spread_bits,
)
from lbrx.devices.cpu.simd.emit import load_at, pointer, same, shuffled, spread, vector_of
from lbrx.devices.cpu.simd.instruction import DOUBLE, FLOAT, HALF, I8, I16, I32, I64, Builder, Value, instruction
from lbrx.tensors.codecs.codebook_tables import Codebook, iq1, iq2_s, iq2_xs, iq2_xxs, iq3_s, iq3_xxs

Read = Callable[[Builder, Value, int], tuple[list[Value], Value]]
Signed = Callable[[Builder, Value, Value, Sequence[int]], Value]
I32X8, I32X16 = ir.VectorType(I32, 8), ir.VectorType(I32, 16)
BYTES8, BYTES64 = ir.VectorType(I8, 8), ir.VectorType(I8, 64)


def number(value: int) -> Value:
    return ir.Constant(I64, value)


def every(value: int, nbytes: int) -> Value:
    """The same number of so many bytes throughout 64 bits."""
    return number(int.from_bytes(value.to_bytes(nbytes, "little") * (8 // nbytes), "little"))


def load_u(builder: Builder, address: Value, element: Any, offset: int) -> Value:
    """A number as 64 bits."""
    return builder.zext(load_at(builder, address, element, offset), I64)


def entries(builder: Builder, name: str, codebook: Codebook, indices: Sequence[Value]) -> Value:
    """64 bytes: entries of a codebook one after the other."""
    element = DOUBLE if len(indices) == 8 else I32  # x86 loads the second half of a register as a double
    table = constant_bytes(builder, f"codebook_{name}", codebook.tobytes())
    vector = ir.Constant(ir.VectorType(element, len(indices)), ir.Undefined)
    for lane, index in enumerate(indices):
        entry = builder.load(pointer(builder, table, element, index))
        vector = builder.insert_element(vector, entry, ir.Constant(I32, lane))
    return builder.bitcast(vector, BYTES64)


def split(builder: Builder, indices: Value) -> list[Value]:
    """Lanes of i16 as numbers: four of them come out of a vector at a time."""
    fours = builder.bitcast(indices, ir.VectorType(I64, indices.type.count // 4))
    loaded = [builder.extract_element(fours, ir.Constant(I32, lane)) for lane in range(fours.type.count)]
    return [part(builder, four, 16 * lane, 0xFFFF) for four in loaded for lane in range(4)]


def with_high_bits(builder: Builder, low: Value, high: Value, shifts: Sequence[int], mask: int) -> list[Value]:
    """Indices of more than eight bits: those above come from words, shifted to the right."""
    words = vector_of(I16, low)
    moved = builder.and_(builder.lshr(high, lanes_of(I16, shifts)), same(words, mask))
    return split(builder, builder.or_(builder.zext(low, words), builder.shl(moved, same(words, 8))))


def words_at(builder: Builder, stored: Value, offset: int, count: int, lanes: Sequence[int]) -> Value:
    """Some of so many words of 16 bits, in another order."""
    loaded = load_at(builder, stored, ir.VectorType(I16, count), offset)
    return shuffled(builder, loaded, loaded, lanes)


def even_signs(builder: Builder, bits: Value) -> Value:
    """Bytes of seven signs, and an eighth that makes the number of negative ones even."""
    folded = bits
    for shift, mask in ((4, 0x0F), (2, 0x03), (1, 0x01)):
        moved = builder.xor(folded, builder.lshr(folded, number(shift)))
        folded = builder.and_(moved, every(mask, 1))
    return builder.bitcast(builder.or_(bits, builder.shl(folded, number(7))), BYTES8)


def seven_bit_bytes(builder: Builder, words: Value) -> Value:
    """Of both halves of 64 bits, the low 28 as four bytes of seven."""
    wide = builder.and_(words, every(0x0FFFFFFF, 4))
    for low, high, shift, nbytes in ((0x3FFF, 0x0FFFC000, 2, 4), (0x007F, 0x3F80, 1, 2)):
        kept, moved = (builder.and_(wide, every(mask, nbytes)) for mask in (low, high))
        wide = builder.or_(kept, builder.shl(moved, number(shift)))
    return wide


def part(builder: Builder, value: Value, shift: int, mask: int, left: int = 0) -> Value:
    """Some bits of a number, shifted to the left."""
    moved = builder.lshr(value, number(shift)) if shift else value
    taken = builder.and_(moved, number(mask))
    return builder.shl(taken, number(left)) if left else taken


def _odd_scales(builder: Builder, codes: Value, stored: Value, factor: float, half_at: int = 0) -> Value:
    """(2 code + 1) times the f16 of the block and a power of two."""
    odd = builder.or_(builder.shl(codes, same(codes.type, 1)), same(codes.type, 1))
    values = times_half(builder, odd, stored, half_at)
    return builder.fmul(values, same(values.type, factor))


def _make_nibble_scales(at: int, count: int, factor: float) -> Any:
    """Scales in half bytes."""

    @instruction((F32X16 if count == 16 else F32X8)(types.int64))
    def scales(builder: Builder, stored: Value) -> Value:
        packed = load_bytes(builder, stored, at, count // 2)
        low, high = (field(builder, packed, shift, 15) for shift in (0, 4))
        lanes = [half * (count // 2) + byte for byte in range(count // 2) for half in (0, 1)]
        codes = builder.zext(shuffled(builder, low, high, lanes), ir.VectorType(I32, count))
        return _odd_scales(builder, codes, stored, factor)

    return scales


def _make_word_scales(at: int, stride: int, factor: float) -> Any:
    """Scales in the top four bits of every second or of all of some words."""

    @instruction(F32X8(types.int64))
    def scales(builder: Builder, stored: Value) -> Value:
        words = load_at(builder, stored, ir.VectorType(I32, 8 * stride), at)
        words = shuffled(builder, words, words, range(stride - 1, 8 * stride, stride))
        return _odd_scales(builder, builder.lshr(words, same(I32X8, 28)), stored, factor)

    return scales


# -- codes of 128 elements from two times 64 ---------------------------------------------------------------------------


def _make_codes(name: str, codebook: Callable[[], Codebook], read: Read, order: Sequence[int], signed: Signed) -> Codes:
    """``read`` gives the indices of 64 elements, and a byte for each eight of them, which ``signed`` needs."""

    def codes(builder: Builder, stored: Value, step: int) -> tuple[Value, ...]:
        (first, low), (second, high) = (read(builder, stored, 2 * step + number) for number in (0, 1))
        indices, signs = [*first, *second], joined(builder, [low, high])
        per_piece = len(indices) // 16

        def half_of_codes(pieces: Sequence[int]) -> Value:
            own = [indices[per_piece * piece + number] for piece in pieces for number in range(per_piece)]
            return signed(builder, entries(builder, name, codebook(), own), signs, pieces)

        return half_of_codes(order[:8]), half_of_codes(order[8:16])

    return codes


def _negated(builder: Builder, values: Value, signs: Value, pieces: Sequence[int]) -> Value:
    return negated_where(builder, spread_bits(builder, signs, pieces), values)


def _make_group(
    nbytes: int, name: str, codebook: Callable[[], Codebook], read: Read, scales: Any, scaled: int, signed: Signed
) -> Group:
    order = HALVES_OF_32 if scaled == 32 else HALVES_OF_16
    codes = _make_codes(name, codebook, read, order, signed)
    return Group(nbytes, 256, codes, order, scales, scaled, is_signed=True, vectors=2)


# -- IQ2: groups of eight ----------------------------------------------------------------------------------------------


def _iq2_xxs(builder: Builder, stored: Value, step: int) -> tuple[list[Value], Value]:
    at = 2 + 16 * step
    indices = [load_u(builder, stored, I8, at + 8 * half + byte) for half in (0, 1) for byte in range(4)]
    first, second = (load_u(builder, stored, I32, at + 8 * half + 4) for half in (0, 1))
    words = builder.or_(first, builder.shl(second, number(32)))
    return indices, even_signs(builder, seven_bit_bytes(builder, words))


def _iq2_xs(builder: Builder, stored: Value, step: int) -> tuple[list[Value], Value]:
    words = load_at(builder, stored, ir.VectorType(I16, 8), 2 + 16 * step)
    indices = split(builder, builder.and_(words, same(words.type, 511)))
    seven = builder.trunc(builder.lshr(words, same(words.type, 9)), BYTES8)
    return indices, even_signs(builder, builder.bitcast(seven, I64))


def _iq2_s(builder: Builder, stored: Value, step: int) -> tuple[list[Value], Value]:
    high = words_at(builder, stored, 66 + 2 * step, 1, [0] * 8)
    indices = with_high_bits(builder, load_bytes(builder, stored, 2 + 8 * step, 8), high, range(0, 16, 2), 3)
    return indices, load_bytes(builder, stored, 34 + 8 * step, 8)


IQ2_XXS = _make_group(66, "iq2_xxs", iq2_xxs, _iq2_xxs, _make_word_scales(2, 2, 0.125), 32, _negated)
IQ2_XS = _make_group(74, "iq2_xs", iq2_xs, _iq2_xs, _make_nibble_scales(66, 16, 0.125), 16, _negated)
IQ2_S = _make_group(82, "iq2_s", iq2_s, _iq2_s, _make_nibble_scales(74, 16, 0.125), 16, _negated)


# -- IQ3: groups of four -----------------------------------------------------------------------------------------------


def _iq3_xxs(builder: Builder, stored: Value, step: int) -> tuple[list[Value], Value]:
    indices = [load_u(builder, stored, I8, 2 + 16 * step + i) for i in range(16)]
    words = load_at(builder, stored, I64, 66 + 8 * step)
    return indices, even_signs(builder, seven_bit_bytes(builder, words))


def _iq3_s(builder: Builder, stored: Value, step: int) -> tuple[list[Value], Value]:
    high = words_at(builder, stored, 66 + 2 * step, 1, [0] * 16)
    indices = with_high_bits(builder, load_bytes(builder, stored, 2 + 16 * step, 16), high, range(16), 1)
    return indices, load_bytes(builder, stored, 74 + 8 * step, 8)


IQ3_XXS = _make_group(98, "iq3_xxs", iq3_xxs, _iq3_xxs, _make_word_scales(66, 1, 0.25), 32, _negated)
IQ3_S = _make_group(110, "iq3_s", iq3_s, _iq3_s, _make_nibble_scales(106, 8, 1.0), 32, _negated)


# -- IQ1: groups of eight, shifted by an eighth: codes are eight times the entries, plus or minus 1 --------------------


def eightfold() -> Codebook:
    return iq1() * 8


def _make_shifted(bits: Sequence[int]) -> Signed:
    """One is taken off an entry if a bit of its byte is set, and else added; the bits of eight bytes are given."""

    def shifted(builder: Builder, values: Value, signs: Value, pieces: Sequence[int]) -> Value:
        wide = shuffled(builder, signs, signs, [piece for piece in pieces for _ in range(8)])
        is_negative = has_bits(builder, wide, [bits[piece % 8] for piece in pieces for _ in range(8)])
        one = same(values.type, 1)
        return builder.select(is_negative, builder.sub(values, one), builder.add(values, one))

    return shifted


def _iq1_s(builder: Builder, stored: Value, step: int) -> tuple[list[Value], Value]:
    high = words_at(builder, stored, 34 + 4 * step, 2, [0] * 4 + [1] * 4)
    shifts = [*range(0, 12, 3)] * 2
    packed = load_bytes(builder, stored, 34 + 4 * step, 4)
    tops = shuffled(builder, packed, packed, [1] * 4 + [3] * 4)
    return with_high_bits(builder, load_bytes(builder, stored, 2 + 8 * step, 8), high, shifts, 7), tops


@instruction(F32X8(types.int64))
def _iq1_s_scales(builder: Builder, stored: Value) -> Value:
    words = builder.zext(load_at(builder, stored, ir.VectorType(I16, 8), 34), I32X8)
    codes = builder.and_(builder.lshr(words, same(I32X8, 12)), same(I32X8, 7))
    return _odd_scales(builder, codes, stored, 0.125)


def _iq1_m(builder: Builder, stored: Value, step: int) -> tuple[list[Value], Value]:
    high = words_at(builder, stored, 32 + 4 * step, 2, [0] * 4 + [1] * 4)
    shifts = [*range(0, 16, 4)] * 2
    packed = load_bytes(builder, stored, 32 + 4 * step, 4)
    halves = shuffled(builder, packed, packed, [byte for byte in range(4) for _ in (0, 1)])
    return with_high_bits(builder, load_bytes(builder, stored, 8 * step, 8), high, shifts, 7), halves


@instruction(F32X16(types.int64))
def _iq1_m_scales(builder: Builder, stored: Value) -> Value:
    """Four times three bits in each of four words of 16, and on top of each four bits of the f16 of the block."""
    words = load_at(builder, stored, I64, 48)
    bits = ir.Constant(I64, 0)
    for word in range(4):
        bits = builder.or_(bits, part(builder, words, 16 * word + 12, 15, left=4 * word))
    unit = builder.fpext(builder.bitcast(builder.trunc(bits, I16), HALF), FLOAT)
    packed = builder.bitcast(words, ir.VectorType(I16, 4))
    each = builder.zext(shuffled(builder, packed, packed, [lane // 4 for lane in range(16)]), I32X16)
    shifts = ir.Constant(I32X16, [3 * (lane % 4) for lane in range(16)])
    codes = builder.and_(builder.lshr(each, shifts), same(I32X16, 7))
    odd = builder.or_(builder.shl(codes, same(I32X16, 1)), same(I32X16, 1))
    values = builder.sitofp(odd, vector_of(FLOAT, odd))
    return builder.fmul(values, spread(builder, builder.fmul(unit, ir.Constant(FLOAT, 0.125)), values.type))


IQ1_S = _make_group(50, "iq1", eightfold, _iq1_s, _iq1_s_scales, 32, _make_shifted([0x80] * 8))
IQ1_M = _make_group(56, "iq1", eightfold, _iq1_m, _iq1_m_scales, 16, _make_shifted([0x08, 0x80] * 4))
