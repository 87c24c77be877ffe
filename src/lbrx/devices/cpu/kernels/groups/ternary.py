"""Codes -1, 0 and 1: TQ1_0 and TQ2_0."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from lbrx.devices.cpu.kernels.groups.group import NATURAL, Group
from lbrx.devices.cpu.kernels.groups.k_quants import two_bits
from lbrx.devices.cpu.kernels.groups.scales import F32X8, load_half
from lbrx.devices.cpu.simd.byte_codes import joined, load_bytes
from lbrx.devices.cpu.simd.emit import same, spread
from lbrx.devices.cpu.simd.instruction import FLOAT, Builder, Value, instruction


def _make_one_scale(at: int) -> Any:
    @instruction(F32X8(types.int64))
    def one_scale(builder: Builder, stored: Value) -> Value:
        return spread(builder, load_half(builder, stored, at), ir.VectorType(FLOAT, 8))

    return one_scale


def _tq2_0(builder: Builder, stored: Value, step: int) -> tuple[Value, ...]:
    return (two_bits(builder, stored, 0, step),)


def _digits(builder: Builder, fractions: Value, first: int, count: int) -> list[Value]:
    """Digits in base 3 of fractions of 256: those from ``first`` on."""
    digits = []
    for number in range(first + count):
        if number:
            fractions = builder.add(builder.add(fractions, fractions), fractions)
        if number >= first:
            is_one, is_two = (
                builder.sext(builder.icmp_unsigned(">=", fractions, same(fractions.type, least)), fractions.type)
                for least in (86, 171)
            )
            digits.append(builder.sub(builder.sub(same(fractions.type, 0), is_one), is_two))
    return digits


def _tq1_0(builder: Builder, stored: Value, step: int) -> tuple[Value, ...]:
    """Bytes 0-31 have five digits of blocks 0-4, bytes 32-47 five of half blocks, and four bytes four of four."""
    if step < 2:
        return (joined(builder, _digits(builder, load_bytes(builder, stored, 0, 32), 2 * step, 2)),)
    halves = load_bytes(builder, stored, 32, 16)
    if step == 2:
        (fifth,) = _digits(builder, load_bytes(builder, stored, 0, 32), 4, 1)
        return (joined(builder, [fifth, joined(builder, _digits(builder, halves, 0, 2))]),)
    last = joined(builder, _digits(builder, load_bytes(builder, stored, 48, 4), 0, 4))
    return (joined(builder, [*_digits(builder, halves, 2, 3), last]),)


TQ1_0 = Group(54, 256, _tq1_0, NATURAL, _make_one_scale(52), offset=1)
TQ2_0 = Group(66, 256, _tq2_0, NATURAL, _make_one_scale(64), offset=1)
