"""Numba intrinsics that load, store and round one element of each dtype by address.

A kernel receives plain addresses, so any alignment works and one signature serves all dtypes. Loads carry an
alias scope that stores are declared not to touch: LLVM vectorises without run-time overlap checks, however many
inputs a pass has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from lbrx.devices.cpu.simd.emit import call_llvm, pointer
from lbrx.devices.cpu.simd.instruction import DOUBLE, FLOAT, HALF, I8, I16, I32, I64, Builder, Value, instruction

_HIGH_HALF = -65536


def _constant(value: int, integer: Any = I32) -> Value:
    return ir.Constant(integer, value)


def _inputs_scope(builder: Builder) -> Any:
    module = builder.module
    domain = module.add_metadata(["lbrx"])
    return module.add_metadata([module.add_metadata(["inputs", domain])])


def _load_bits(builder: Builder, base: Value, index: Value, memory: Any) -> Value:
    loaded = builder.load(pointer(builder, base, memory, index), align=1)
    loaded.set_metadata("alias.scope", _inputs_scope(builder))
    return loaded


def _store_bits(builder: Builder, base: Value, index: Value, value: Value) -> None:
    stored = builder.store(value, pointer(builder, base, value.type, index), align=1)
    stored.set_metadata("noalias", _inputs_scope(builder))


def _is_nan(builder: Builder, value: Value) -> Value:
    return builder.fcmp_unordered("uno", value, value)


def _bf16_to_f32(builder: Builder, bits: Value) -> Value:
    return builder.bitcast(builder.shl(builder.zext(bits, I32), _constant(16)), FLOAT)


def _bf16_in_high_half(builder: Builder, value: Value) -> Value:
    """A float32 rounded to bf16: the high 16 bits of the result; the others are anything."""
    bits = builder.bitcast(value, I32)
    odd = builder.and_(builder.lshr(bits, _constant(16)), _constant(1))
    rounded = builder.add(bits, builder.add(odd, _constant(0x7FFF)))
    quiet = builder.or_(bits, _constant(0x400000))
    return builder.select(_is_nan(builder, value), quiet, rounded)


def _f32_to_bf16(builder: Builder, value: Value) -> Value:
    return builder.trunc(builder.lshr(_bf16_in_high_half(builder, value), _constant(16)), I16)


def _f16_to_f32(builder: Builder, bits: Value) -> Value:
    return builder.fpext(builder.bitcast(bits, HALF), FLOAT)


def _f32_to_f16(builder: Builder, value: Value) -> Value:
    return builder.bitcast(builder.fptrunc(value, HALF), I16)


def _e4m3_to_f32(builder: Builder, bits: Value) -> Value:
    wide = builder.zext(bits, I32)
    magnitude = builder.and_(wide, _constant(0x7F))
    sign = builder.shl(builder.and_(wide, _constant(0x80)), _constant(24))
    # The 7 bits read as a float32 are too small by 2^(127-7); the product is exact, subnormals included.
    scaled = builder.fmul(builder.bitcast(builder.shl(magnitude, _constant(20)), FLOAT), ir.Constant(FLOAT, 2.0**120))
    signed = builder.or_(builder.bitcast(scaled, I32), sign)
    is_nan = builder.icmp_unsigned("==", magnitude, _constant(0x7F))
    return builder.bitcast(builder.select(is_nan, _constant(0x7FC00000), signed), FLOAT)


def _e5m2_to_f32(builder: Builder, bits: Value) -> Value:
    return _f16_to_f32(builder, builder.shl(builder.zext(bits, I16), _constant(8, I16)))


def _f32_to_small_float(mantissa_bits: int, bias: int, overflow: int, nan: int) -> Callable[[Builder, Value], Value]:
    """Round a float32 to an 8-bit float; codes above ``overflow`` become it, NaN becomes ``nan``."""
    shift = 23 - mantissa_bits
    smallest_normal = (127 + 1 - bias) << 23
    magic = (127 + 1 - bias - mantissa_bits + 23) << 23

    def convert(builder: Builder, value: Value) -> Value:
        bits = builder.bitcast(value, I32)
        magnitude = builder.and_(bits, _constant(0x7FFFFFFF))
        sign = builder.and_(builder.lshr(bits, _constant(24)), _constant(0x80))
        odd = builder.and_(builder.lshr(magnitude, _constant(shift)), _constant(1))
        biased = builder.add(magnitude, builder.add(odd, _constant((1 << (shift - 1)) - 1)))
        normal = builder.sub(builder.lshr(biased, _constant(shift)), _constant((127 - bias) << mantissa_bits))
        # Adding a power of two whose last bit is the smallest subnormal makes the adder round.
        pushed = builder.fadd(builder.bitcast(magnitude, FLOAT), builder.bitcast(_constant(magic), FLOAT))
        subnormal = builder.sub(builder.bitcast(pushed, I32), _constant(magic))
        is_normal = builder.icmp_unsigned(">=", magnitude, _constant(smallest_normal))
        code = builder.select(is_normal, normal, subnormal)
        code = builder.select(builder.icmp_signed(">", code, _constant(overflow)), _constant(overflow), code)
        code = builder.select(_is_nan(builder, value), _constant(nan), code)
        return builder.trunc(builder.or_(code, sign), I8)

    return convert


_f32_to_e4m3 = _f32_to_small_float(mantissa_bits=3, bias=7, overflow=0x7F, nan=0x7F)
_f32_to_e5m2 = _f32_to_small_float(mantissa_bits=2, bias=15, overflow=0x7C, nan=0x7E)


def _same(_builder: Builder, value: Value) -> Value:
    return value


def _byte_to_bool(builder: Builder, byte: Value) -> Value:
    return builder.icmp_unsigned("!=", byte, _constant(0, I8))


def _bool_to_byte(builder: Builder, value: Value) -> Value:
    return builder.zext(value, I8)


# dtype -> (bits in memory, type in a register, bits -> register, register -> bits)
_DTYPES: dict[str, tuple[Any, Any, Callable[..., Value], Callable[..., Value]]] = {
    "f64": (DOUBLE, types.float64, _same, _same),
    "f32": (FLOAT, types.float32, _same, _same),
    "f16": (I16, types.float32, _f16_to_f32, _f32_to_f16),
    "bf16": (I16, types.float32, _bf16_to_f32, _f32_to_bf16),
    "f8_e4m3": (I8, types.float32, _e4m3_to_f32, _f32_to_e4m3),
    "f8_e5m2": (I8, types.float32, _e5m2_to_f32, _f32_to_e5m2),
    "i64": (I64, types.int64, _same, _same),
    "i32": (I32, types.int32, _same, _same),
    "i16": (I16, types.int16, _same, _same),
    "i8": (I8, types.int8, _same, _same),
    "u8": (I8, types.uint8, _same, _same),
    "bool": (I8, types.boolean, _byte_to_bool, _bool_to_byte),
}


def _make_load(name: str) -> Any:
    memory, register, decode, _ = _DTYPES[name]

    @instruction(register(types.int64, types.int64))
    def load(builder: Builder, base: Value, index: Value) -> Value:
        return decode(builder, _load_bits(builder, base, index, memory))

    return load


def _make_store(name: str) -> Any:
    _, register, _, encode = _DTYPES[name]

    @instruction(types.void(types.int64, types.int64, register))
    def store(builder: Builder, base: Value, index: Value, value: Value) -> None:
        _store_bits(builder, base, index, encode(builder, value))

    return store


def _make_round(name: str) -> Any:
    _, register, decode, encode = _DTYPES[name]

    @instruction(register(register))
    def rounded(builder: Builder, value: Value) -> Value:
        return decode(builder, encode(builder, value))

    return rounded


def _make_load_packed(bits: int) -> Any:
    per_byte_log2 = {4: 1, 2: 2}[bits]

    @instruction(types.int8(types.int64, types.int64))
    def load(builder: Builder, base: Value, index: Value) -> Value:
        byte = _load_bits(builder, base, builder.ashr(index, _constant(per_byte_log2, I64)), I8)
        within = builder.trunc(builder.and_(index, _constant((1 << per_byte_log2) - 1, I64)), I8)
        shift = builder.sub(_constant(8 - bits, I8), builder.mul(within, _constant(bits, I8)))
        return builder.ashr(builder.shl(byte, shift), _constant(8 - bits, I8))

    return load


@instruction(types.float32(types.float64))
def f64_to_odd_f32(builder: Builder, wide: Value) -> Value:
    """float64 -> float32 rounded to odd, so that a second rounding to a half type is the correct one."""
    narrow = builder.fptrunc(wide, FLOAT)
    bits = builder.bitcast(narrow, I32)
    back = builder.fpext(narrow, DOUBLE)
    inexact = builder.fcmp_ordered("one", back, wide)
    magnitude_grew = builder.fcmp_ordered(
        ">", *(call_llvm(builder, "llvm.fabs.f64", DOUBLE, [x]) for x in (back, wide))
    )
    toward_zero = builder.sub(bits, builder.zext(magnitude_grew, I32))
    odd = builder.or_(toward_zero, _constant(1))
    return builder.bitcast(builder.select(inexact, odd, bits), FLOAT)


@instruction(types.float64(types.int64))
def i64_to_sticky_f64(builder: Builder, number: Value) -> Value:
    """int64 -> float64 without rounding: beyond 53 bits, the low 11 bits only say whether any of them was set."""
    low = builder.and_(number, _constant(0x7FF, I64))
    sticky = builder.select(
        builder.icmp_unsigned("!=", low, _constant(0, I64)), _constant(0x400, I64), _constant(0, I64)
    )
    shortened = builder.or_(builder.and_(number, _constant(~0x7FF, I64)), sticky)
    above = builder.add(builder.ashr(number, _constant(53, I64)), _constant(1, I64))
    is_long = builder.icmp_unsigned(">", above, _constant(1, I64))
    return builder.sitofp(builder.select(is_long, shortened, number), DOUBLE)


def _make_saturating(source: str, target: str) -> Any:
    """A float-to-integer conversion that truncates, clips at the ends and maps NaN to 0."""
    (integer, result), register = _DTYPES[target][:2], _DTYPES[source][1]
    name = f"llvm.fpto{'u' if target[0] == 'u' else 's'}i.sat.i{target[1:]}.{source}"

    @instruction(result(register))
    def convert(builder: Builder, value: Value) -> Value:
        return call_llvm(builder, name, integer, [value])

    return convert


def _make_wrap_packed(bits: int) -> Any:
    shift = _constant(8 - bits, I8)

    @instruction(types.int8(types.int8))
    def wrap(builder: Builder, value: Value) -> Value:
        return builder.ashr(builder.shl(value, shift), shift)

    return wrap


@instruction(types.float32(types.int32))
def first_bf16(builder: Builder, pair: Value) -> Value:
    """The first of two bf16 in a word, as float32."""
    return builder.bitcast(builder.shl(pair, _constant(16)), FLOAT)


@instruction(types.float32(types.int32))
def second_bf16(builder: Builder, pair: Value) -> Value:
    return builder.bitcast(builder.and_(pair, _constant(_HIGH_HALF)), FLOAT)


@instruction(types.int32(types.float32, types.float32))
def pair_of_bf16(builder: Builder, first: Value, second: Value) -> Value:
    """Two float32, rounded to bf16, in a word."""
    low, high = (_bf16_in_high_half(builder, value) for value in (first, second))
    return builder.or_(builder.lshr(low, _constant(16)), builder.and_(high, _constant(_HIGH_HALF)))


ELEMENT_FUNCTIONS: dict[str, Any] = {
    "f64_to_odd_f32": f64_to_odd_f32,
    "i64_to_sticky_f64": i64_to_sticky_f64,
    "first_bf16": first_bf16,
    "second_bf16": second_bf16,
    "pair_of_bf16": pair_of_bf16,
    **{f"load_{name}": _make_load(name) for name in _DTYPES},
    **{f"store_{name}": _make_store(name) for name in _DTYPES},
    **{f"round_{name}": _make_round(name) for name in ("f16", "bf16", "f8_e4m3", "f8_e5m2")},
    **{f"load_i{bits}": _make_load_packed(bits) for bits in (4, 2)},
    **{f"wrap_i{bits}": _make_wrap_packed(bits) for bits in (4, 2)},
    **{
        f"{source}_to_{target}": _make_saturating(source, target)
        for source in ("f32", "f64")
        for target in ("i64", "i32", "i16", "i8", "u8")
    },
}
"""By the names that generated kernels call them by."""

load_f32, load_f16, load_bf16, load_f8_e4m3, load_i64, load_i32, load_i16, load_byte = (
    ELEMENT_FUNCTIONS[f"load_{name}"] for name in ("f32", "f16", "bf16", "f8_e4m3", "i64", "i32", "i16", "u8")
)
store_f32, store_f16, store_bf16, store_f8_e4m3, store_i64, store_i32, store_i16, store_byte = (
    ELEMENT_FUNCTIONS[f"store_{name}"] for name in ("f32", "f16", "bf16", "f8_e4m3", "i64", "i32", "i16", "u8")
)
round_f8_e4m3, round_f16, round_bf16 = (ELEMENT_FUNCTIONS[f"round_{name}"] for name in ("f8_e4m3", "f16", "bf16"))
