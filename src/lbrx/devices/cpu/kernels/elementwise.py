"""Activations and rotations, element by element."""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.simd.elements import load_f32, store_f32
from lbrx.devices.cpu.simd.f32 import absolute, exp, tanh
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.memory import peek_f32, poke_f32
from lbrx.devices.cpu.simd.scalars import f32_from_bits
from lbrx.devices.cpu.simd.vectors import f32x8, lane, load, select, splat, store

ZERO, HALF, ONE = np.float32(0.0), np.float32(0.5), np.float32(1.0)
TANH_SLOPE = np.float32(-2.0 * 0.7978845608028654)  # -2 sqrt(2 / pi)
TANH_CUBE = np.float32(-2.0 * 0.7978845608028654 * 0.044715)
SQRT_HALF = np.float32(0.7071067811865476)


@jit
def _silu(x: Any) -> Any:
    return x / (exp(x * -ONE) + ONE)


@jit
def _gelu_tanh(x: Any) -> Any:
    """x (1 + tanh y) / 2 is x / (1 + exp(-2 y)), which loses no digits where tanh is near -1."""
    return x / (exp(x * (x * x * TANH_CUBE + TANH_SLOPE)) + ONE)


# exp(z**2) erfc(z) as a polynomial in t = 1 / (1 + z / 2): within 3e-7 of it, relatively, for z from 0 to 10
ERFC_0, ERFC_1 = np.float32(-4.925175289827166e-06), np.float32(0.2821962535381317)
ERFC_2, ERFC_3 = np.float32(0.2813430428504944), np.float32(0.24847501516342163)
ERFC_4, ERFC_5 = np.float32(0.18558919429779053), np.float32(0.0080110477283597)
ERFC_6, ERFC_7 = np.float32(0.2332562953233719), np.float32(-0.45137280225753784)
ERFC_8, ERFC_9 = np.float32(0.26845744252204895), np.float32(-0.05595061555504799)


@jit
def _gelu(x: Any) -> Any:
    z = absolute(x) * SQRT_HALF
    t = ONE / (z * HALF + ONE)
    series = (((t * ERFC_9 + ERFC_8) * t + ERFC_7) * t + ERFC_6) * t + ERFC_5
    series = ((((series * t + ERFC_4) * t + ERFC_3) * t + ERFC_2) * t + ERFC_1) * t + ERFC_0
    tail = series * exp(z * z * -ONE) * HALF
    return x * select(x < np.float32(0.0), tail, ONE - tail)


@jit
def _relu(x: Any) -> Any:
    return select(x < ZERO, splat(x, ZERO), x)  # NaN stays


@jit
def _relu_squared(x: Any) -> Any:
    positive = _relu(x)
    return positive * positive


def _make_map(function: Any) -> Any:
    """``target = function(source)``"""

    def mapped(source: int, target: int, count: int) -> None:
        like = f32x8(0.0)
        for i in range(count // 8):
            store(target, i, function(load(like, source, i)))
        for i in range(count // 8 * 8, count):
            store_f32(target, i, lane(function(f32x8(load_f32(source, i))), 0))

    return mapped


def _make_product(function: Any) -> Any:
    """``target = function(source) * other``"""

    def multiplied(source: int, target: int, count: int, other: int) -> None:
        like = f32x8(0.0)
        for i in range(count // 8):
            store(target, i, function(load(like, source, i)) * load(like, other, i))
        for i in range(count // 8 * 8, count):
            store_f32(target, i, lane(function(f32x8(load_f32(source, i))), 0) * load_f32(other, i))

    return multiplied


silu, gelu, gelu_tanh = _make_map(_silu), _make_map(_gelu), _make_map(_gelu_tanh)
relu, relu_squared = _make_map(_relu), _make_map(_relu_squared)
silu_mul, gelu_mul, gelu_tanh_mul = _make_product(_silu), _make_product(_gelu), _make_product(_gelu_tanh)


def _make_sum(combine: Any) -> Any:
    """``target = combine(source, other)``"""

    def combined(source: int, target: int, count: int, other: int) -> None:
        like = f32x8(0.0)
        for i in range(count // 8):
            store(target, i, combine(load(like, source, i), load(like, other, i)))
        for i in range(count // 8 * 8, count):
            poke_f32(target, i, combine(peek_f32(source, i), peek_f32(other, i)))

    return combined


def _make_sum_of_rows(combine: Any) -> Any:
    """Every row with the same other one."""
    combined = jit(_make_sum(combine))

    def of_rows(source: int, target: int, rows: int, columns: int, other: int) -> None:
        for row in range(rows):
            combined(source + 4 * columns * row, target + 4 * columns * row, columns, other)

    return of_rows


@jit
def _plus(left: Any, right: Any) -> Any:
    return left + right


@jit
def _times(left: Any, right: Any) -> Any:
    return left * right


add, mul = _make_sum(_plus), _make_sum(_times)
add_rows, mul_rows = _make_sum_of_rows(_plus), _make_sum_of_rows(_times)


def scale(source: int, target: int, count: int, factor_bits: int) -> None:
    """source * factor"""
    like = f32x8(0.0)
    factor = f32_from_bits(factor_bits)
    for i in range(count // 8):
        store(target, i, load(like, source, i) * factor)
    for i in range(count // 8 * 8, count):
        poke_f32(target, i, peek_f32(source, i) * factor)


def rope(source: int, target: int, rows: int, columns: int, pairs: int, cosines: int, sines: int, near: int) -> None:
    """Turn pairs of elements of each row; the rest of the row is copied. Every row has its cosines and sines.

    Pair i is elements 2 i and 2 i + 1 if they are ``near``, else elements i and i + pairs.
    """
    step, apart = (2, 1) if near else (1, pairs)
    for row in range(rows):
        values, out = source + 4 * columns * row, target + 4 * columns * row
        cosine, sine = cosines + 4 * pairs * row, sines + 4 * pairs * row
        for i in range(pairs):
            x, y = load_f32(values, step * i), load_f32(values, step * i + apart)
            c, s = load_f32(cosine, i), load_f32(sine, i)
            store_f32(out, step * i, x * c - y * s)
            store_f32(out, step * i + apart, y * c + x * s)
        for i in range(2 * pairs, columns):
            store_f32(out, i, load_f32(values, i))


def softcap(source: int, target: int, count: int, cap_bits: int) -> None:
    """cap tanh(x / cap)"""
    like = f32x8(0.0)
    cap = f32_from_bits(cap_bits)
    for i in range(count // 8):
        store(target, i, tanh(load(like, source, i) / cap) * cap)
    for i in range(count // 8 * 8, count):
        store_f32(target, i, lane(tanh(f32x8(load_f32(source, i)) / cap), 0) * cap)
