"""More vectors for kernels: half types, sums in f64, exp and its kin.

Like `lbrx.devices.cpu.simd.vectors`, on which it stands: lanes are written into the code, and nothing is
reordered or fused but where it says so, so that results are the same on every instruction set.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.datamodel import models
from numba.extending import register_model

from lbrx.devices.cpu.simd.vectors import I32, instruction, jit, select, splat

I16, DOUBLE = ir.IntType(16), ir.DoubleType()
Builder = Any
Value = Any


class Doubles(types.Type):
    """The Numba type of a vector of f64: only sums are made of it."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        super().__init__(name=f"f64x{lanes}")

    @property
    def llvm(self) -> Any:
        return ir.VectorType(DOUBLE, self.lanes)


class _DoublesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Doubles) -> None:
        super().__init__(manager, kind, kind.llvm)  # type: ignore[no-untyped-call]


register_model(Doubles)(_DoublesModel)


def halves(builder: Builder, vector: Value, count: int) -> tuple[Value, Value]:
    """The lower and the upper ``count`` lanes."""
    low, high = (
        builder.shuffle_vector(vector, vector, ir.Constant(ir.VectorType(I32, count), list(range(at, at + count))))
        for at in (0, count)
    )
    return low, high


def _tree_sum(builder: Builder, vector: Value, lanes: int) -> Value:
    """Lanes added in halves: lane i and lane i + lanes / 2 first."""
    while lanes > 1:
        lanes //= 2
        vector = builder.fadd(*halves(builder, vector, lanes))
    return builder.extract_element(vector, ir.Constant(I32, 0))


@instruction
def lane_sum(_context: Any, value: Any) -> Any:
    """The sum of f32 lanes, in f32 and as a tree."""

    def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
        return _tree_sum(builder, args[0], value.lanes)

    return types.float32(value), generate


@instruction
def no_sum(_context: Any, like: Any) -> Any:
    """Zeros in f64, with as many lanes as ``like``."""
    kind = Doubles(like.lanes)

    def generate(_target: Any, _builder: Builder, _signature: Any, _args: Any) -> Value:
        return ir.Constant(kind.llvm, [0.0] * like.lanes)

    return kind(like), generate


@instruction
def add_wide(_context: Any, total: Any, value: Any) -> Any:
    """``total + value`` with the f32 lanes widened."""

    def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
        return builder.fadd(args[0], builder.fpext(args[1], total.llvm))

    return total(total, value), generate


@instruction
def add_square(_context: Any, total: Any, value: Any, _mean: Any) -> Any:
    """``total + (value - mean)**2`` in f64."""

    def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
        single = builder.insert_element(ir.Constant(total.llvm, ir.Undefined), args[2], ir.Constant(I32, 0))
        zeros = ir.Constant(ir.VectorType(I32, total.lanes), [0] * total.lanes)
        mean = builder.shuffle_vector(single, single, zeros)
        difference = builder.fsub(builder.fpext(args[1], total.llvm), mean)
        return builder.fadd(args[0], builder.fmul(difference, difference))

    return total(total, value, types.float64), generate


@instruction
def wide_sum(_context: Any, total: Any) -> Any:
    """The sum of f64 lanes, as a tree."""

    def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
        return _tree_sum(builder, args[0], total.lanes)

    return types.float64(total), generate


@instruction
def bits_of(_context: Any, value: Any) -> Any:
    """The bits of f32 lanes as i32."""

    def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
        return builder.bitcast(args[0], value.of("i32").llvm)

    return value.of("i32")(value), generate


@instruction
def floats_of(_context: Any, bits: Any) -> Any:
    """The f32 lanes that have these bits."""

    def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
        return builder.bitcast(args[0], bits.of("f32").llvm)

    return bits.of("f32")(bits), generate


@instruction
def load_f16(_context: Any, like: Any, _base: Any, _index: Any) -> Any:
    """The vector with this number of those of f16 at an address, as f32."""

    def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
        kind = ir.VectorType(ir.HalfType(), like.lanes)
        pointer = builder.gep(builder.inttoptr(args[1], kind.as_pointer()), [args[2]])
        return builder.fpext(builder.load(pointer, align=1), like.llvm)

    return like(like, types.int64, types.int64), generate


@instruction
def load_bf16(_context: Any, like: Any, _base: Any, _index: Any) -> Any:
    """The vector with this number of those of bf16 at an address, as f32."""

    def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
        kind = ir.VectorType(I16, like.lanes)
        pointer = builder.gep(builder.inttoptr(args[1], kind.as_pointer()), [args[2]])
        wide = builder.zext(builder.load(pointer, align=1), like.of("i32").llvm)
        sixteen = ir.Constant(like.of("i32").llvm, [16] * like.lanes)
        return builder.bitcast(builder.shl(wide, sixteen), like.llvm)

    return like(like, types.int64, types.int64), generate


# -- functions ---------------------------------------------------------------------------------------------------------

LOG2_E = np.float32(1.4426950408889634)
ROUNDER = np.float32(12582912.0)  # added to a small number, it leaves the nearest integer in the low bits
ROUNDER_BITS = np.int32(0x4B400000)
MINUS_LN2_HIGH, MINUS_LN2_LOW = np.float32(-0.693145751953125), np.float32(-1.4286068203094172e-06)
SMALLEST, LARGEST, INFINITY = np.float32(-88.0), np.float32(88.0), np.float32(np.inf)
EXP_0, EXP_1, EXP_2 = np.float32(0.4999999403953552), np.float32(0.1666652113199234), np.float32(0.04166838899254799)
EXP_3, EXP_4 = np.float32(0.0083687175065279), np.float32(0.0013814596459269524)
ONE, TWO = np.float32(1.0), np.float32(2.0)


@instruction
def fused(_context: Any, left: Any, right: Any, added: Any) -> Any:
    """``left * right + added``, rounded once: the same everywhere, and one instruction almost everywhere."""

    def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
        full = f"llvm.fma.v{left.lanes}f32"
        function = builder.module.globals.get(full) or ir.Function(
            builder.module, ir.FunctionType(left.llvm, [left.llvm] * 3), full
        )
        return builder.call(function, args)

    return left(left, right, added), generate


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
