"""Groups of 16 to 128 values whose codes are one stream of bits, with scales (and zero points or biases) kept apart.

A function that codes writes one part: the codes, the scales or the biases of all groups. Codes of so many bits follow
each other from the lowest bit on; eight of them fill a whole number of bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.kernels.codecs.small_floats import nearest_e2m1
from lbrx.devices.cpu.simd.bit_stream import LOAD_8_INTEGERS, LOAD_16_CODES, LOAD_16_INTEGERS, e2m1_values, e4m3_values
from lbrx.devices.cpu.simd.elements import (
    load_f32,
    round_f8_e4m3,
    store_byte,
    store_f8_e4m3,
    store_f32,
)
from lbrx.devices.cpu.simd.f32 import nearest_even
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.maths import log_f64
from lbrx.devices.cpu.simd.scalars import f32_from_bits
from lbrx.devices.cpu.simd.vectors import (
    clamp,
    f32x8,
    lane,
    lane_max,
    lane_min,
    load,
    maximum,
    minimum,
    splat,
    store,
    to_f32,
    to_i32,
)

_LOG2_E = 1.4426950408889634
LOAD_16_NIBBLES, LOAD_16_BYTES = LOAD_16_CODES[4], LOAD_16_CODES[8]
_LARGEST_E2M1, _LARGEST_E4M3 = np.float32(6.0), np.float32(448.0)


@jit
def extremes(values: Any, size: Any) -> Any:
    low = load(f32x8(0.0), values, 0)
    high = low
    for number in range(1, size // 8):
        value = load(low, values, number)
        low, high = minimum(value, low), maximum(value, high)
    return lane_min(low), lane_max(high)


@jit
def _largest(values: Any, size: Any) -> Any:
    low, high = extremes(values, size)
    return max(abs(low), abs(high))


@jit
def store_codes(target: Any, eight: Any, codes: Any, bits: Any) -> None:
    """Codes number 8 ``eight`` and following of a group as ``bits`` bytes."""
    word = np.int64(0)
    for k in range(8):
        word |= np.int64(lane(codes, k) & ((1 << bits) - 1)) << (bits * k)
    for byte in range(bits):
        store_byte(target, eight * bits + byte, np.uint8((word >> (8 * byte)) & 255))


@jit
def rint(value: Any) -> Any:
    return lane(nearest_even(splat(f32x8(0.0), value)), 0)


# -- floats of 4 and 8 bits with a scale that is a power of two (E8M0) or an E4M3 -------------------------------------


@jit
def _exponent(scale: Any) -> Any:
    """log2 of a scale, rounded to f32 and then up to a whole number; 0 for a scale of 0."""
    if not scale > 0:
        return np.int64(0)
    logarithm = np.float32(log_f64(np.float64(scale)) * _LOG2_E)
    truncated = np.int64(logarithm)
    return min(max(truncated + np.int64(logarithm > np.float32(truncated)), -127), 127)


@jit
def _power_of_two(exponent: Any) -> Any:
    return f32_from_bits((exponent + 127) << 23 if exponent > -127 else 1 << 22)


@jit
def _store_e2m1(source: Any, target: Any, size: Any, scale: Any) -> None:
    like = f32x8(0.0)
    for eight in range(size // 8):
        value = load(like, source, eight)
        store_codes(target, eight, nearest_e2m1(value / scale if scale != 0 else like, np.float32(0.5)), 4)


def mxfp4_codes(values: int, target: int, groups: int) -> None:
    for group in range(groups):
        source = values + 128 * group
        exponent = _exponent(_largest(source, 32) / _LARGEST_E2M1)
        _store_e2m1(source, target + 16 * group, 32, _power_of_two(exponent))


def mxfp4_scales(values: int, target: int, groups: int) -> None:
    for group in range(groups):
        exponent = _exponent(_largest(values + 128 * group, 32) / _LARGEST_E2M1)
        store_byte(target, group, np.uint8(exponent + 127))


def nvfp4_codes(values: int, target: int, groups: int) -> None:
    for group in range(groups):
        source = values + 64 * group
        scale = round_f8_e4m3(min(_largest(source, 16) / _LARGEST_E2M1, _LARGEST_E4M3))
        _store_e2m1(source, target + 8 * group, 16, scale)


def nvfp4_scales(values: int, target: int, groups: int) -> None:
    for group in range(groups):
        store_f8_e4m3(target, group, min(_largest(values + 64 * group, 16) / _LARGEST_E2M1, _LARGEST_E4M3))


def mxfp8_codes(values: int, target: int, groups: int) -> None:
    for group in range(groups):
        source = values + 128 * group
        scale = _power_of_two(_exponent(_largest(source, 32) / _LARGEST_E4M3))
        for i in range(32):
            scaled = min(max(load_f32(source, i) / scale, -_LARGEST_E4M3), _LARGEST_E4M3)
            store_f8_e4m3(target, 32 * group + i, scaled)


def mxfp8_scales(values: int, target: int, groups: int) -> None:
    for group in range(groups):
        exponent = _exponent(_largest(values + 128 * group, 32) / _LARGEST_E4M3)
        store_byte(target, group, np.uint8(exponent + 127))


def decode_e2m1(codes: int, values: int, groups: int, scales: int, size: int) -> None:
    for group in range(groups):
        source, out = codes + size // 2 * group, values + 4 * size * group
        scale = load_f32(scales, group)
        for number in range(size // 16):
            store(out, number, e2m1_values(LOAD_16_NIBBLES(source + 8 * number)) * scale)


def decode_e4m3(codes: int, values: int, groups: int, scales: int, size: int) -> None:
    for group in range(groups):
        source, out = codes + size * group, values + 4 * size * group
        scale = load_f32(scales, group)
        for number in range(size // 16):
            store(out, number, e4m3_values(LOAD_16_BYTES(source + 16 * number)) * scale)


# -- integers: x = (code - zero point) scale, codes signed ------------------------------------------------------------


@jit
def _symmetric(values: Any, size: Any, bits: Any) -> Any:
    return _largest(values, size) / np.float32((1 << (bits - 1)) - 1)


@jit
def _asymmetric(values: Any, size: Any, bits: Any) -> Any:
    """Scale and zero point of a range that always has 0 in it."""
    low, high = extremes(values, size)
    low, high = min(low, np.float32(0.0)), max(high, np.float32(0.0))
    scale = (high - low) / np.float32((1 << bits) - 1)
    bottom = -np.float32(1 << (bits - 1))
    if scale == 0:
        return scale, np.float32(0.0)
    return scale, min(max(rint(bottom - low / scale), bottom), -bottom - np.float32(1.0))


@jit
def _store_integers(source: Any, target: Any, size: Any, bits: Any, scale: Any, zero_point: Any) -> None:
    like = f32x8(0.0)
    bottom = -np.float32(1 << (bits - 1))
    for eight in range(size // 8):
        level = nearest_even(load(like, source, eight) / scale) + zero_point if scale != 0 else like
        store_codes(target, eight, to_i32(clamp(level, bottom, -bottom - np.float32(1.0))), bits)


def symmetric_codes(values: int, target: int, groups: int, size: int, bits: int) -> None:
    for group in range(groups):
        source = values + 4 * size * group
        out = target + size * bits // 8 * group
        _store_integers(source, out, size, bits, _symmetric(source, size, bits), np.float32(0.0))


def symmetric_scales(values: int, target: int, groups: int, size: int, bits: int) -> None:
    for group in range(groups):
        store_f32(target, group, _symmetric(values + 4 * size * group, size, bits))


def asymmetric_codes(values: int, target: int, groups: int, size: int, bits: int) -> None:
    for group in range(groups):
        source = values + 4 * size * group
        scale, zero_point = _asymmetric(source, size, bits)
        _store_integers(source, target + size * bits // 8 * group, size, bits, scale, zero_point)


def asymmetric_scales(values: int, target: int, groups: int, size: int, bits: int) -> None:
    for group in range(groups):
        store_f32(target, group, _asymmetric(values + 4 * size * group, size, bits)[0])


def asymmetric_zero_points(values: int, target: int, groups: int, size: int, bits: int) -> None:
    for group in range(groups):
        zero_point = np.int64(_asymmetric(values + 4 * size * group, size, bits)[1])
        store_byte(target, group, np.uint8(zero_point & 255))


def _make_decode_integers(bits: int) -> Any:
    load_16, load_8 = LOAD_16_INTEGERS[bits], LOAD_8_INTEGERS[bits]

    @jit
    def decode_groups(codes: Any, values: Any, groups: Any, scales: Any, zero_points: Any, size: Any) -> None:
        for group in range(groups):
            source, out = codes + size * bits // 8 * group, values + 4 * size * group
            scale, zero_point = load_f32(scales, group), load_f32(zero_points, group)
            for number in range(size // 16):
                store(out, number, (to_f32(load_16(source + 2 * bits * number)) - zero_point) * scale)
            if size % 16 != 0:
                last = size // 8 - 1
                store(out, last, (to_f32(load_8(source + bits * last)) - zero_point) * scale)

    return decode_groups


_decode_2_bits, _decode_4_bits, _decode_8_bits = (_make_decode_integers(bits) for bits in (2, 4, 8))


def decode_integers(codes: int, values: int, groups: int, scales: int, zero_points: int, size: int, bits: int) -> None:
    if bits == 2:
        _decode_2_bits(codes, values, groups, scales, zero_points, size)
    elif bits == 4:
        _decode_4_bits(codes, values, groups, scales, zero_points, size)
    else:
        _decode_8_bits(codes, values, groups, scales, zero_points, size)
