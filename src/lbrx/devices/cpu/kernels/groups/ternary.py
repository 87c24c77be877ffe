"""Codes -1, 0 and 1: TQ1_0 and TQ2_0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types

from lbrx.devices.cpu.kernels.groups.group import NATURAL, Group
from lbrx.devices.cpu.kernels.groups.k_quants import two_bits
from lbrx.devices.cpu.kernels.groups.scales import F32X8, load_half
from lbrx.devices.cpu.simd.byte_codes import BYTES, joined, lanes_of, load_bytes, repeated
from lbrx.devices.cpu.simd.emit import same, spread, vector_of
from lbrx.devices.cpu.simd.instruction import FLOAT, I8, I16, I32, Builder, Value, instruction
from lbrx.devices.cpu.simd.processor import IS_ARM


def _make_one_scale(at: int) -> Any:
    @instruction(F32X8(types.int64))
    def one_scale(builder: Builder, stored: Value) -> Value:
        return spread(builder, load_half(builder, stored, at), ir.VectorType(FLOAT, 8))

    return one_scale


def _tq2_0(builder: Builder, stored: Value, step: int) -> tuple[Value, ...]:
    return (two_bits(builder, stored, 0, step),)


def _digits(builder: Builder, packed: Value, places: Sequence[int]) -> Value:
    """Digits in base 3 of bytes, which are fractions of 256: one of every byte, at a place of its own.

    ``places`` are those of pairs of bytes.
    """
    if IS_ARM:
        powers = lanes_of(I8, [3**place for place in places for _ in range(2)])
        fractions = builder.mul(packed, powers)
        return builder.lshr(_mean(builder, fractions, builder.lshr(fractions, same(BYTES, 1))), same(BYTES, 6))
    words = ir.VectorType(I16, 32)
    source = builder.bitcast(packed, words)
    low = builder.mul(source, lanes_of(I16, [3**place << 8 for place in places]))
    high = builder.mul(builder.and_(source, same(words, 0xFF00)), lanes_of(I16, [3**place for place in places]))
    high = builder.and_(_high_product(builder, high, 3 << 8), same(words, 0x0300))
    return builder.bitcast(builder.or_(_high_product(builder, low, 3), high), BYTES)


def _mean(builder: Builder, left: Value, right: Value) -> Value:
    """Of bytes, rounded down: one instruction."""
    left, right = (builder.zext(each, vector_of(I16, each)) for each in (left, right))
    return builder.trunc(builder.lshr(builder.add(left, right), same(left.type, 1)), BYTES)


def _high_product(builder: Builder, words: Value, factor: int) -> Value:
    """The high halves of products: one instruction."""
    wide = vector_of(I32, words)
    product = builder.mul(builder.zext(words, wide), same(wide, factor))
    return builder.trunc(builder.lshr(product, same(wide, 16)), words.type)


def _tq1_0(builder: Builder, stored: Value, step: int) -> tuple[Value, ...]:
    """Bytes 0-31 have five digits of blocks 0-4, bytes 32-47 five of half blocks, and four bytes four of four."""
    whole, half = load_bytes(builder, stored, 0, 32), load_bytes(builder, stored, 32, 16)
    if step < 2:
        return (_digits(builder, repeated(builder, whole, 2), [2 * step] * 16 + [2 * step + 1] * 16),)
    if step == 2:
        halves = repeated(builder, half, 2)
        return (_digits(builder, joined(builder, [whole, halves]), [4] * 16 + [0] * 8 + [1] * 8),)
    last = repeated(builder, load_bytes(builder, stored, 48, 4), 4)
    packed = joined(builder, [half, half, half, last])
    places = [place for place in (2, 3, 4) for _ in range(8)] + [place for place in range(4) for _ in range(2)]
    return (_digits(builder, packed, places),)


TQ1_0 = Group(54, 256, _tq1_0, NATURAL, _make_one_scale(52), offset=1)
TQ2_0 = Group(66, 256, _tq2_0, NATURAL, _make_one_scale(64), offset=1)
