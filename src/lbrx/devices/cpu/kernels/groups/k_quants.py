"""Blocks of 256 with coded scales: Q2_K, Q3_K, Q4_K, Q5_K and Q6_K."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from lbrx.devices.cpu.kernels.groups.group import HALVES_OF_16, HALVES_OF_32, NATURAL, Codes, Group
from lbrx.devices.cpu.kernels.groups.scales import F32X8, F32X16, times_half
from lbrx.devices.cpu.simd.byte_codes import (
    add_where,
    field,
    has_bits,
    joined,
    lanes_of,
    load_bytes,
    of_sixteens,
    repeated,
)
from lbrx.devices.cpu.simd.emit import load_at, same, shuffled
from lbrx.devices.cpu.simd.instruction import I8, I32, I64, Builder, Value, instruction
from lbrx.devices.cpu.simd.processor import IS_ARM

BYTES8, BYTES16 = ir.VectorType(I8, 8), ir.VectorType(I8, 16)


TWO_BITS = [shift for shift in (0, 2, 4, 6) for _ in range(4)]
"""Shifts of 16 bytes, four times: their two bits belong to elements that are 32 apart."""


def _half_pieces(builder: Builder, stored: Value, at: int, nbytes: int, half: int) -> Value:
    """The first or the second eight of every 16 bytes."""
    loaded = load_bytes(builder, stored, at, nbytes)
    return shuffled(builder, loaded, loaded, [lane for lane in range(nbytes) if lane % 16 // 8 == half])


def _two_bits(builder: Builder, stored: Value, at: int, step: int, half: int) -> Value:
    """Of 128 elements, halves of blocks of 16: elements l, l + 32, l + 64 and l + 96 share a byte."""
    packed = repeated(builder, _half_pieces(builder, stored, at + 32 * step, 32, half), 4)
    return field(builder, packed, TWO_BITS, 3)


# -- Q4_K and Q5_K -----------------------------------------------------------------------------------------------------


def _make_pairs(nibbles_at: int, fifth_at: int) -> Codes:
    """Byte l of 32 p + l has element l of block 2 p in its low half, and of block 2 p + 1 in its high half."""

    def codes(builder: Builder, stored: Value, step: int) -> tuple[Value, ...]:
        return tuple(half_of_pairs(builder, stored, step, half) for half in (0, 1))

    def half_of_pairs(builder: Builder, stored: Value, step: int, half: int) -> Value:
        """Elements 0-15 or 16-31 of four blocks."""
        starts = [nibbles_at + 64 * step + 32 * (block // 2) + 16 * half for block in range(4)]
        packed = joined(builder, [load_bytes(builder, stored, start, 16) for start in starts])
        own = field(builder, packed, [0] * 4 + [4] * 4 + [0] * 4 + [4] * 4, 15)
        if not fifth_at:
            return own
        fifth_bits = repeated(builder, load_bytes(builder, stored, fifth_at + 16 * half, 16), 4)
        mask = has_bits(builder, fifth_bits, [1 << (4 * step + block) for block in range(4) for _ in range(16)])
        return add_where(builder, mask, own, 16)

    return codes


def _make_six_bit_numbers(is_low: bool) -> Any:
    """The eight scales, or the eight minimums, of 12 bytes times the first or the second f16 of the block."""

    @instruction(F32X8(types.int64))
    def six_bit_numbers(builder: Builder, stored: Value) -> Value:
        def constant(value: int) -> Value:
            return ir.Constant(I32, value)

        own, shared = load_at(builder, stored, I32, 8 if is_low else 4), load_at(builder, stored, I32, 12)
        if is_low:
            shared = builder.lshr(shared, constant(4))
        first = builder.and_(own, constant(0x3F3F3F3F))
        top = builder.and_(builder.lshr(own, constant(2)), constant(0x30303030))
        second = builder.or_(builder.and_(shared, constant(0x0F0F0F0F)), top)
        both = builder.or_(builder.zext(first, I64), builder.shl(builder.zext(second, I64), ir.Constant(I64, 32)))
        numbers = builder.zext(builder.bitcast(both, BYTES8), ir.VectorType(I32, 8))
        return times_half(builder, numbers, stored, 2 if is_low else 0)

    return six_bit_numbers


_SCALES, _MINIMUMS = _make_six_bit_numbers(is_low=False), _make_six_bit_numbers(is_low=True)
Q4_K = Group(144, 256, _make_pairs(16, 0), HALVES_OF_32, _SCALES, lows=_MINIMUMS, vectors=2)
Q5_K = Group(176, 256, _make_pairs(48, 16), HALVES_OF_32, _SCALES, lows=_MINIMUMS, vectors=2)


# -- Q6_K --------------------------------------------------------------------------------------------------------------


def _q6_k(builder: Builder, stored: Value, step: int) -> tuple[Value, ...]:
    """Byte l of 64 has the low bits of elements l and l + 64; byte l of 32 has two of l, l + 32, l + 64 and l + 96."""
    half, part = step // 2, step % 2
    packed = load_bytes(builder, stored, 64 * half, 64)
    top = repeated(builder, load_bytes(builder, stored, 128 + 32 * half, 32), 2)
    if IS_ARM:
        top = field(builder, top, [4 * part] * 8 + [4 * part + 2] * 8, 3)
        low = builder.lshr(packed, same(packed.type, 4 * part)) if part else packed
        return (of_sixteens(builder, "vsli", low, top, ir.Constant(I32, 4)),)  # keeps the four low bits
    words = ir.VectorType(I32, 16)
    move, amounts = (builder.lshr, [0, 2]) if part else (builder.shl, [4, 2])
    moved = move(builder.bitcast(top, words), lanes_of(I32, [amount for amount in amounts for _ in range(8)]))
    top = builder.and_(builder.bitcast(moved, top.type), same(top.type, 0x30))
    return (builder.or_(field(builder, packed, 4 * part, 15), top),)


@instruction(F32X16(types.int64))
def _q6_k_scales(builder: Builder, stored: Value) -> Value:
    codes = builder.sext(load_at(builder, stored, BYTES16, 192), ir.VectorType(I32, 16))
    return times_half(builder, codes, stored, 208)


Q6_K = Group(210, 256, _q6_k, NATURAL, _q6_k_scales, scaled=16, offset=32)


# -- Q2_K --------------------------------------------------------------------------------------------------------------


def _q2_k(builder: Builder, stored: Value, step: int) -> tuple[Value, ...]:
    return tuple(_two_bits(builder, stored, 16, step, half) for half in (0, 1))


def _make_nibbles_as_scales(shift: int, half_at: int) -> Any:
    @instruction(F32X16(types.int64))
    def nibbles(builder: Builder, stored: Value) -> Value:
        codes = field(builder, load_at(builder, stored, BYTES16), shift, 15)
        return times_half(builder, builder.zext(codes, ir.VectorType(I32, 16)), stored, half_at)

    return nibbles


_SCALES_OF_16, _LOWS_OF_16 = _make_nibbles_as_scales(0, 80), _make_nibbles_as_scales(4, 82)
Q2_K = Group(84, 256, _q2_k, HALVES_OF_16, _SCALES_OF_16, scaled=16, lows=_LOWS_OF_16, vectors=2)


# -- Q3_K --------------------------------------------------------------------------------------------------------------


def _q3_k(builder: Builder, stored: Value, step: int) -> tuple[Value, ...]:
    return tuple(_q3_k_half(builder, stored, step, half) for half in (0, 1))


def _q3_k_half(builder: Builder, stored: Value, step: int, half: int) -> Value:
    """Bit b of byte l is the third one of element l of block b."""
    packed = repeated(builder, _half_pieces(builder, stored, 0, 32, half), 4)
    mask = has_bits(builder, packed, [1 << (4 * step + block) for block in range(4) for _ in range(16)])
    return add_where(builder, mask, _two_bits(builder, stored, 32, step, half), 4)


@instruction(F32X16(types.int64))
def _q3_k_scales(builder: Builder, stored: Value) -> Value:
    """Byte j has the low halves of scales j and j + 8; byte 8 + j % 4 has two high bits of scale j."""
    halves = repeated(builder, load_at(builder, stored, BYTES8, 96), 2)
    low = field(builder, halves, [0, 0, 4, 4], 15)
    quarters = builder.bitcast(load_at(builder, stored, I32, 104), ir.VectorType(I8, 4))
    top = field(builder, shuffled(builder, quarters, quarters, list(range(4)) * 4), [0, 2, 4, 6], 3)
    codes = builder.or_(low, builder.shl(top, same(top.type, 4)))
    numbers = builder.sub(builder.zext(codes, ir.VectorType(I32, 16)), same(ir.VectorType(I32, 16), 32))
    return times_half(builder, numbers, stored, 108)


Q3_K = Group(110, 256, _q3_k, HALVES_OF_16, _q3_k_scales, scaled=16, offset=4, vectors=2)
