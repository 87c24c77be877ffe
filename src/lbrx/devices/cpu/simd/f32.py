"""Functions of f32 lanes: loads of half types, rounding, exp and tanh.

Nothing is reordered, or fused but where it says so, so that results are the same on every instruction set.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from lbrx.devices.cpu.simd.emit import call_llvm, pointer, spread, vector_of, widened_bf16
from lbrx.devices.cpu.simd.instruction import FLOAT, HALF, I16, Builder, Value, instruction, jit
from lbrx.devices.cpu.simd.vectors import bits_of, floats_of, select, splat


def _make_load(element: Any, widened: Any) -> Any:
    """The vector with this number of those of a half type at an address, as f32."""

    @instruction(lambda like, _base, _index: like(like, types.int64, types.int64))
    def load(builder: Builder, like: Value, base: Value, index: Value) -> Value:
        return widened(builder, builder.load(pointer(builder, base, vector_of(element, like), index), align=1))

    return load


load_f16 = _make_load(HALF, lambda builder, halves: builder.fpext(halves, vector_of(FLOAT, halves)))
load_bf16 = _make_load(I16, widened_bf16)


@instruction(lambda value: value(value))
def round_to_f16(builder: Builder, value: Value) -> Value:
    """Each lane rounded to the nearest half and widened again."""
    return builder.fpext(builder.fptrunc(value, vector_of(HALF, value)), value.type)


def _make_function(name: str) -> Any:
    @instruction(lambda value: value(value))
    def of_lanes(builder: Builder, value: Value) -> Value:
        return call_llvm(builder, f"llvm.{name}.v{value.type.count}f32", value.type, [value])

    return of_lanes


absolute, square_root = _make_function("fabs"), _make_function("sqrt")
nearest_even, nearest_away = _make_function("roundeven"), _make_function("round")


@instruction(lambda left, right, added: left(left, right, added))
def fused(builder: Builder, left: Value, right: Value, added: Value) -> Value:
    """``left * right + added``, rounded once: the same everywhere, and one instruction almost everywhere."""
    return call_llvm(builder, f"llvm.fma.v{left.type.count}f32", left.type, [left, right, added])


def stairs(thresholds: tuple[float, ...], results: tuple[float, ...]) -> Any:
    """A function of f32 lanes: results[k], where k is how many of the (rising) thresholds a value reaches."""

    @instruction(lambda value: value(value))
    def climbed(builder: Builder, value: Value) -> Value:
        def everywhere(number: float) -> Value:
            return spread(builder, ir.Constant(FLOAT, number), value.type)

        reached = everywhere(results[0])
        for threshold, result in zip(thresholds, results[1:], strict=True):
            is_reached = builder.fcmp_ordered(">=", value, everywhere(threshold))
            reached = builder.select(is_reached, everywhere(result), reached)
        return reached

    return climbed


LOG2_E = np.float32(1.4426950408889634)
ROUNDER = np.float32(12582912.0)  # added to a small number, it leaves the nearest integer in the low bits
ROUNDER_BITS = np.int32(0x4B400000)
MINUS_LN2_HIGH, MINUS_LN2_LOW = np.float32(-0.693145751953125), np.float32(-1.4286068203094172e-06)
SMALLEST, LARGEST, INFINITY = np.float32(-88.0), np.float32(88.0), np.float32(np.inf)
EXP_0, EXP_1, EXP_2 = np.float32(0.4999999403953552), np.float32(0.1666652113199234), np.float32(0.04166838899254799)
EXP_3, EXP_4 = np.float32(0.0083687175065279), np.float32(0.0013814596459269524)
ONE, TWO = np.float32(1.0), np.float32(2.0)


@jit
def _times_plus(left: Any, factor: Any, added: Any) -> Any:
    """``left * factor + added`` with two numbers."""
    return fused(left, splat(left, factor), splat(left, added))


@jit
def exp_up_to_zero(value: Any) -> Any:
    """e to the power of every lane that is not above 88, within 2 units in the last place: 0 below -87.6."""
    bounded = select(value < SMALLEST, splat(value, SMALLEST), value)  # NaN stays
    shifted = _times_plus(bounded, LOG2_E, ROUNDER)
    whole = shifted - ROUNDER
    r = fused(whole, splat(value, MINUS_LN2_HIGH), bounded)
    r = fused(whole, splat(value, MINUS_LN2_LOW), r)
    tail = _times_plus(r, EXP_4, EXP_3)
    tail = fused(tail, r, splat(value, EXP_2))
    tail = fused(tail, r, splat(value, EXP_1))
    tail = fused(tail, r, splat(value, EXP_0))
    power = floats_of((bits_of(shifted) - (ROUNDER_BITS - np.int32(127))) << 23)
    return (fused(tail, r * r, r) + ONE) * power


@jit
def exp(value: Any) -> Any:
    """e to the power of every lane, within 2 units in the last place: 0 below -87.6, infinity above 88."""
    is_large = value > LARGEST
    return select(is_large, splat(value, INFINITY), exp_up_to_zero(select(is_large, splat(value, LARGEST), value)))


@jit
def tanh(value: Any) -> Any:
    """The hyperbolic tangent of every lane, within 2e-7."""
    return ONE - TWO / (exp(value * TWO) + ONE)
