"""Floats of four bits (E2M1) and the scales of eight bits that go with them: E8M0 and unsigned E4M3."""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.simd.byte_codes import make_table
from lbrx.devices.cpu.simd.f32 import absolute
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.scalars import bits_from_f32, f32_from_bits
from lbrx.devices.cpu.simd.vectors import select, splat, to_i32

MAGNITUDES = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)  # of E2M1, doubled to be whole
_MIDDLES = (0.5, 1.5, 2.5, 3.5, 5.0, 7.0, 10.0)

doubled_value_of_code = make_table([int(sign * value) for sign in (1, -1) for value in MAGNITUDES])
_LOG2_E = 1.4426950408889634


@jit
def nearest_e2m1(values: Any, half_scale: Any) -> Any:
    """Codes of the doubled values nearest to x / half_scale: of two as near the smaller, and never minus zero."""
    magnitude = absolute(values)
    code, one, zero = splat(values, 0.0), splat(values, 1.0), splat(values, 0.0)
    for middle in _MIDDLES:
        code = code + select(magnitude > half_scale * np.float32(middle), one, zero)
    is_negative = (values < 0.0) & (code > 0.0)
    return to_i32(code + select(is_negative, splat(values, 8.0), zero))


@jit
def e2m1_values(codes: Any, half_scale: Any) -> Any:
    return doubled_value_of_code(codes) * half_scale


@jit
def floor_log2(value: Any) -> Any:
    """floor(log2(x)) of a positive number, log2 rounded to f32 first: just below a power of two it may round up."""
    exponent = (np.int64(bits_from_f32(value)) >> 23) - 127
    above = exponent + 1
    gap = 1.0 - np.float64(value) / np.float64(f32_from_bits((above + 127) << 23))
    logarithm = np.float32(np.float64(above) - gap * _LOG2_E * (1.0 + 0.5 * gap))
    return above if gap < 1e-5 and logarithm == np.float32(above) else exponent


@jit
def e8m0_of_largest(largest: Any) -> Any:
    """The exponent for which the largest magnitude lies within [4, 8) scales."""
    if not largest > 0:
        return 0
    return min(max(floor_log2(largest) - 2 + 127, 0), 254)


@jit
def half_of_e8m0(exponent: Any) -> Any:
    """Half of 2^(e - 127), which is subnormal for the two smallest exponents."""
    return f32_from_bits(0x00200000 << exponent if exponent < 2 else (exponent - 1) << 23)


@jit
def unsigned_e4m3(value: Any) -> Any:
    """The bits of a scale: halves round up, and nothing is above 448."""
    if not value > 0:
        return 0
    bits = np.int64(bits_from_f32(min(value, np.float32(448.0))))
    exponent = (bits >> 23) - 127 + 7
    if exponent <= 0:
        return min(np.int64(value * np.float32(512.0) + np.float32(0.5)), 7)
    mantissa = ((bits >> 20) & 7) + ((bits >> 19) & 1)
    code = (exponent << 3) + mantissa
    return 0x7E if exponent >= 15 or code >= 15 << 3 else code


@jit
def half_of_unsigned_e4m3(code: Any) -> Any:
    """Half the value; the code that stands for no number is 0."""
    exponent, mantissa = (code >> 3) & 15, code & 7
    if code == 0 or code == 0x7F:
        return np.float32(0.0)
    if exponent == 0:
        return np.float32(mantissa) * np.float32(2.0**-10)
    return f32_from_bits(((exponent - 7 - 1 + 127) << 23) | (mantissa << 20))
