"""Codes of four bits for entries of a table: IQ4_NL, IQ4_XS, MXFP4 and NVFP4."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir
from numba import types

from lbrx.devices.cpu.kernels.groups.group import HALVES_OF_16, HALVES_OF_32, Codes, Group
from lbrx.devices.cpu.kernels.groups.legacy import nibbles_of_blocks
from lbrx.devices.cpu.kernels.groups.scales import F32X8, F32X16, gathered, make_halves_of_blocks, times_half
from lbrx.devices.cpu.simd.byte_codes import field, joined, lanes_of, load_bytes, look_up
from lbrx.devices.cpu.simd.emit import load_at, same, spread
from lbrx.devices.cpu.simd.instruction import FLOAT, I8, I16, I32, Builder, Value, instruction

NONLINEAR = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
DOUBLED_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
I32X8, I32X16 = ir.VectorType(I32, 8), ir.VectorType(I32, 16)


def _make_codes(table: Sequence[int], block_bytes: int, at: int) -> Codes:
    def codes(builder: Builder, stored: Value, step: int) -> tuple[Value, ...]:
        halves = nibbles_of_blocks(builder, stored, step, block_bytes, at)
        return tuple(look_up(builder, table, half) for half in halves)

    return codes


IQ4_NL = Group(
    *(8 * 18, 32, _make_codes(NONLINEAR, 18, 2), HALVES_OF_32, make_halves_of_blocks(18)), is_signed=True, vectors=2
)


# -- IQ4_XS: a block is a group ----------------------------------------------------------------------------------------


@instruction(F32X8(types.int64))
def _iq4_xs_scales(builder: Builder, stored: Value) -> Value:
    high, low = (spread(builder, value, I32X8) for value in _packed_scales(builder, stored))
    low = builder.and_(builder.lshr(low, lanes_of(I32, range(0, 32, 4))), same(I32X8, 15))
    high = builder.and_(builder.lshr(high, lanes_of(I32, range(0, 16, 2))), same(I32X8, 3))
    codes = builder.or_(low, builder.shl(high, same(I32X8, 4)))
    return times_half(builder, builder.sub(codes, same(I32X8, 32)), stored, 0)


def _packed_scales(builder: Builder, stored: Value) -> tuple[Value, Value]:
    return builder.zext(load_at(builder, stored, I16, 2), I32), load_at(builder, stored, I32, 4)


IQ4_XS = Group(136, 256, _make_codes(NONLINEAR, 16, 8), HALVES_OF_32, _iq4_xs_scales, is_signed=True, vectors=2)


# -- MXFP4 -------------------------------------------------------------------------------------------------------------


def _bytes_at(builder: Builder, stored: Value, offsets: Sequence[int]) -> Value:
    return builder.zext(gathered(builder, stored, I8, offsets), ir.VectorType(I32, len(offsets)))


@instruction(F32X8(types.int64))
def _half_powers(builder: Builder, stored: Value) -> Value:
    """Half of 2^(e - 127), which is subnormal for the two smallest exponents."""
    exponents = _bytes_at(builder, stored, [17 * block for block in range(8)])
    normal = builder.shl(builder.sub(exponents, same(I32X8, 1)), same(I32X8, 23))
    small = builder.shl(same(I32X8, 0x00200000), builder.and_(exponents, same(I32X8, 1)))
    is_small = builder.icmp_unsigned("<", exponents, same(I32X8, 2))
    return builder.bitcast(builder.select(is_small, small, normal), ir.VectorType(FLOAT, 8))


MXFP4 = Group(8 * 17, 32, _make_codes(DOUBLED_E2M1, 17, 1), HALVES_OF_32, _half_powers, is_signed=True, vectors=2)


# -- NVFP4: blocks of 64, with a scale for every 16 elements, whose halves share eight bytes ---------------------------


def _nvfp4(builder: Builder, stored: Value, step: int) -> tuple[Value, ...]:
    packed = joined(builder, [load_bytes(builder, stored, 36 * block + 4, 32) for block in (2 * step, 2 * step + 1)])
    return tuple(look_up(builder, DOUBLED_E2M1, field(builder, packed, shift, 15)) for shift in (0, 4))


@instruction(F32X16(types.int64))
def _half_scales(builder: Builder, stored: Value) -> Value:
    """Half of each unsigned E4M3: its bits, as an f32 with another bias; the code that is no number is 0."""
    words = gathered(builder, stored, I32, [36 * block for block in range(4)])
    codes = builder.zext(builder.bitcast(words, ir.VectorType(I8, 16)), I32X16)
    codes = builder.and_(codes, same(I32X16, 0x7F))
    is_number = builder.icmp_unsigned("!=", codes, same(I32X16, 0x7F))
    bits = builder.shl(builder.select(is_number, codes, same(I32X16, 0)), same(I32X16, 20))
    values = builder.bitcast(bits, ir.VectorType(FLOAT, 16))
    return builder.fmul(values, same(values.type, 2.0**119))


NVFP4 = Group(*(4 * 36, 64, _nvfp4, HALVES_OF_16, _half_scales), scaled=16, is_signed=True, vectors=2)
