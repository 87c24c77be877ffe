"""Codes of 2 to 8 bits that follow each other from the lowest bit on, as lanes of i32.

Each code is looked up as the two bytes in which it begins; a shift and a mask are left. Eight codes of so many bits
are as many bytes.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from lbrx.devices.cpu.simd.byte_codes import field, load_bytes, look_up
from lbrx.devices.cpu.simd.emit import load_at, reduced, same, shuffled, store_at, vector_of
from lbrx.devices.cpu.simd.instruction import FLOAT, HALF, I8, I16, I32, Builder, Value, instruction
from lbrx.devices.cpu.simd.vectors import Vector

BIT_WIDTHS = (2, 3, 4, 5, 6, 8)


def words_of_codes(builder: Builder, source: Value, bits: int, lanes: int) -> Value:
    """The codes in the bytes of a vector as lanes of i16."""
    starts = [number * bits for number in range(lanes)]
    last = source.type.count - 1
    pairs = [min(start // 8 + byte, last) for start in starts for byte in (0, 1)]
    words = builder.bitcast(shuffled(builder, source, source, pairs), ir.VectorType(I16, lanes))
    shifts = ir.Constant(words.type, [start % 8 for start in starts])
    return builder.and_(builder.lshr(words, shifts), same(words.type, (1 << bits) - 1))


def _make_load_codes(bits: int, lanes: int, is_signed: bool) -> Any:
    vector: Any = Vector("i32", lanes)

    @instruction(vector(types.int64))
    def load_codes(builder: Builder, address: Value) -> Value:
        source = load_at(builder, address, ir.VectorType(I8, lanes * bits // 8))
        if bits == 8:
            return (builder.sext if is_signed else builder.zext)(source, vector.llvm)
        codes = builder.zext(words_of_codes(builder, source, bits, lanes), vector.llvm)
        if not is_signed:
            return codes
        unused = same(vector.llvm, I32.width - bits)
        return builder.ashr(builder.shl(codes, unused), unused)

    return load_codes


LOAD_8_CODES, LOAD_16_CODES = (
    {bits: _make_load_codes(bits, lanes, is_signed=False) for bits in BIT_WIDTHS} for lanes in (8, 16)
)
LOAD_8_INTEGERS, LOAD_16_INTEGERS = (
    {bits: _make_load_codes(bits, lanes, is_signed=True) for bits in (2, 4, 8)} for lanes in (8, 16)
)
"""The same with the highest bit of a code as its sign."""


# -- codes that are floats ---------------------------------------------------------------------------------------------


def _as_f16(builder: Builder, codes: Value, bits: int, mantissa_bits: int) -> Value:
    """Codes of small floats put into the bits of f16, whose exponents have another bias."""
    words = builder.trunc(codes, vector_of(I16, codes))
    left = same(words.type, 10 - mantissa_bits)
    magnitude = builder.shl(builder.and_(words, same(words.type, (1 << (bits - 1)) - 1)), left)
    sign = builder.shl(builder.lshr(words, same(words.type, bits - 1)), same(words.type, 15))
    halves = builder.bitcast(builder.or_(magnitude, sign), vector_of(HALF, codes))
    return builder.fpext(halves, vector_of(FLOAT, codes))


@instruction(lambda codes: codes.of("f32")(codes))
def e2m1_values(builder: Builder, codes: Value) -> Value:
    """Floats of four bits as f32, exactly."""
    values = _as_f16(builder, codes, 4, 1)
    return builder.fmul(values, same(values.type, 2.0**14))


@instruction(lambda codes: codes.of("f32")(codes))
def e4m3_values(builder: Builder, codes: Value) -> Value:
    """Floats of eight bits as f32, exactly; 0x7F and 0xFF are NaN."""
    values = _as_f16(builder, codes, 8, 3)
    magnitudes = builder.and_(codes, same(codes.type, 0x7F))
    is_nan = builder.icmp_signed("==", magnitudes, same(codes.type, 0x7F))
    return builder.select(is_nan, same(values.type, float("nan")), builder.fmul(values, same(values.type, 2.0**8)))


_WORDS: Any = Vector("i16", 32)


@instruction(_WORDS(types.int64))
def load_e4m3_halves(builder: Builder, address: Value) -> Value:
    """32 floats of eight bits as the bits of f16, divided by 256; NaN becomes 1.875."""
    words = builder.sext(load_bytes(builder, address, 0, 32), _WORDS.llvm)
    return builder.and_(builder.shl(words, same(words.type, 7)), same(words.type, -1 ^ 1 << 14))


@instruction(lambda words: _WORDS.of("f32")(words))
def floats_of_halves(builder: Builder, words: Value) -> Value:
    """The f16 with these bits as f32."""
    return builder.fpext(builder.bitcast(words, vector_of(HALF, words)), vector_of(FLOAT, words))


@instruction(_WORDS(_WORDS, _WORDS))
def larger_magnitudes(builder: Builder, magnitudes: Value, words: Value) -> Value:
    """The larger ones of magnitudes and of the magnitudes of others, as bits of f16."""
    others = builder.and_(words, same(words.type, 0x7FFF))
    return builder.select(builder.icmp_signed(">", others, magnitudes), others, magnitudes)


@instruction(types.float32(_WORDS))
def nan_if_e4m3_nan(builder: Builder, magnitudes: Value) -> Value:
    """NaN if the largest magnitudes of `load_e4m3_halves` have one that stands for NaN, else 0."""
    largest = reduced(builder, magnitudes, lambda a, b: builder.select(builder.icmp_signed(">", a, b), a, b))
    is_nan = builder.icmp_signed("==", largest, ir.Constant(I16, 0x7F << 7))
    return builder.select(is_nan, ir.Constant(FLOAT, float("nan")), ir.Constant(FLOAT, 0.0))


DOUBLED_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Twice the values of floats of four bits."""


def _make_store_doubled_e2m1(in_bytes: bool) -> Any:
    """Twice the values of 32 floats of four bits, as i16 or i8."""

    @instruction(types.void(types.int64, types.int64))
    def store_doubled(builder: Builder, stored: Value, out: Value) -> None:
        packed = load_bytes(builder, stored, 0, 16)
        low, high = field(builder, packed, 0, 15), field(builder, packed, 4, 15)
        in_order = shuffled(builder, low, high, [byte + 16 * half for byte in range(16) for half in (0, 1)])
        values = look_up(builder, DOUBLED_E2M1, in_order)
        store_at(builder, values if in_bytes else builder.sext(values, vector_of(I16, values)), out)

    return store_doubled


store_doubled_e2m1, store_doubled_e2m1_in_bytes = (_make_store_doubled_e2m1(in_bytes) for in_bytes in (False, True))
