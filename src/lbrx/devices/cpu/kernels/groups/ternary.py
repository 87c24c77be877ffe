"""Codes of less than three bits: TQ1_0, TQ2_0, Q1_0 and Q2_0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types

from lbrx.devices.cpu.kernels.groups.group import HALVES_OF_32, Group
from lbrx.devices.cpu.kernels.groups.k_quants import TWO_BITS
from lbrx.devices.cpu.kernels.groups.scales import F32X8, gathered, load_half, widened_halves
from lbrx.devices.cpu.simd.byte_codes import (
    BYTES,
    field,
    joined,
    lanes_of,
    load_bytes,
    of_sixteens,
    repeated,
    spread_bits,
)
from lbrx.devices.cpu.simd.emit import same, shuffled, spread, vector_of
from lbrx.devices.cpu.simd.instruction import FLOAT, I8, I16, I32, Builder, Value, instruction
from lbrx.devices.cpu.simd.processor import IS_ARM


def _make_one_scale(at: int) -> Any:
    @instruction(F32X8(types.int64))
    def one_scale(builder: Builder, stored: Value) -> Value:
        return spread(builder, load_half(builder, stored, at), ir.VectorType(FLOAT, 8))

    return one_scale


def _tq2_0(builder: Builder, stored: Value, step: int) -> tuple[Value, ...]:
    """Elements l, l + 32, l + 64 and l + 96 of 128 share a byte."""
    halves = (load_bytes(builder, stored, 32 * step + 16 * half, 16) for half in (0, 1))
    return tuple(field(builder, repeated(builder, half, 4), TWO_BITS, 3) for half in halves)


def _digits(builder: Builder, packed: Value, places: Sequence[int]) -> Value:
    """Digits in base 3 of bytes, which are fractions of 256: one of every byte, at a place of its own.

    ``places`` are those of pairs of bytes.
    """
    if IS_ARM:
        powers = lanes_of(I8, [3**place for place in places for _ in range(2)])
        fractions = builder.mul(packed, powers)
        halves = builder.lshr(fractions, same(BYTES, 1))
        return builder.lshr(of_sixteens(builder, "uhadd", fractions, halves), same(BYTES, 6))
    words = ir.VectorType(I16, 32)
    source = builder.bitcast(packed, words)
    low = builder.mul(source, lanes_of(I16, [3**place << 8 for place in places]))
    high = builder.mul(builder.and_(source, same(words, 0xFF00)), lanes_of(I16, [3**place for place in places]))
    high = builder.and_(_high_product(builder, high, 3 << 8), same(words, 0x0300))
    return builder.bitcast(builder.or_(_high_product(builder, low, 3), high), BYTES)


def _high_product(builder: Builder, words: Value, factor: int) -> Value:
    """The high halves of products: one instruction."""
    wide = vector_of(I32, words)
    product = builder.mul(builder.zext(words, wide), same(wide, factor))
    return builder.trunc(builder.lshr(product, same(wide, 16)), words.type)


def _tq1_0(builder: Builder, stored: Value, step: int) -> tuple[Value, ...]:
    """Bytes 0-31 have five digits of blocks 0-4, bytes 32-47 five of half blocks, and four bytes four of four."""
    return tuple(_half_of_blocks(builder, stored, step, half) for half in (0, 1))


def _half_of_blocks(builder: Builder, stored: Value, step: int, half: int) -> Value:
    whole, shared = load_bytes(builder, stored, 16 * half, 16), load_bytes(builder, stored, 32, 16)
    if step == 0:
        return _digits(builder, repeated(builder, whole, 4), [place for place in range(4) for _ in range(8)])
    last = repeated(builder, load_bytes(builder, stored, 48, 4), 4) if half else shared
    places = [place for place in (4, half, 2 + half) for _ in range(8)]
    places += [place for place in range(4) for _ in (0, 1)] if half else [4] * 8
    return _digits(builder, joined(builder, [whole, shared, shared, last]), places)


TQ1_0 = Group(54, 256, _tq1_0, HALVES_OF_32, _make_one_scale(52), offset=1, vectors=2)
TQ2_0 = Group(66, 256, _tq2_0, HALVES_OF_32, _make_one_scale(64), offset=1, vectors=2)


# -- blocks of 128 and 64 ----------------------------------------------------------------------------------------------

_BLOCK_BYTES = 18  # an f16 and 16 bytes of codes


def _make_scales(per_scale: int) -> Any:
    """A scale for so many blocks of 32."""

    @instruction(F32X8(types.int64))
    def scales(builder: Builder, stored: Value) -> Value:
        offsets = [_BLOCK_BYTES * number for number in range(8 // per_scale)]
        values = widened_halves(builder, gathered(builder, stored, I16, offsets))
        return shuffled(builder, values, values, [block // per_scale for block in range(8)])

    return scales


def _q1_0(builder: Builder, stored: Value, step: int) -> tuple[Value, ...]:
    """Bits become 0 and 2, so that 1 is taken off."""
    packed = load_bytes(builder, stored, _BLOCK_BYTES * step + 2, 16)
    halves = ([4 * block + 2 * half + byte for block in range(4) for byte in (0, 1)] for half in (0, 1))
    masks = (spread_bits(builder, packed, half) for half in halves)
    return tuple(builder.select(mask, same(BYTES, 2), same(BYTES, 0)) for mask in masks)


def _q2_0(builder: Builder, stored: Value, step: int) -> tuple[Value, ...]:
    """Four elements share a byte."""
    parts = [load_bytes(builder, stored, _BLOCK_BYTES * block + 2, 16) for block in (2 * step, 2 * step + 1)]
    packed = joined(builder, parts)
    return tuple(_pairs_of_bits(builder, packed, half) for half in (0, 1))


def _pairs_of_bits(builder: Builder, packed: Value, half: int) -> Value:
    """Of four blocks, four bytes each: all pairs of bits, the lowest first."""
    own = shuffled(builder, packed, packed, [8 * block + 4 * half + byte for block in range(4) for byte in range(4)])
    if IS_ARM:  # it shifts every byte by a number of its own
        moved = builder.lshr(_each_four_times(builder, own), lanes_of(I8, [0, 2, 4, 6] * 16))
        return builder.and_(moved, same(BYTES, 3))
    low, high = field(builder, own, 0, 15), field(builder, own, 4, 15)
    nibbles = shuffled(builder, low, high, [byte + 16 * high for byte in range(16) for high in (0, 0, 1, 1)])
    words = builder.bitcast(nibbles, ir.VectorType(I16, 32))
    even = builder.and_(words, same(words.type, 0x0003))
    odd = builder.and_(builder.lshr(words, same(words.type, 2)), same(words.type, 0x0300))
    return builder.bitcast(builder.or_(even, odd), BYTES)


def _each_four_times(builder: Builder, packed: Value) -> Value:
    return shuffled(builder, packed, packed, [lane // 4 for lane in range(BYTES.count)])


Q1_0 = Group(2 * _BLOCK_BYTES, 128, _q1_0, HALVES_OF_32, _make_scales(4), offset=1, vectors=2)
Q2_0 = Group(4 * _BLOCK_BYTES, 64, _q2_0, HALVES_OF_32, _make_scales(2), offset=1, vectors=2)
