"""Kernels over rows of f32: softmax and norms. A row is cut into vectors of eight; its end is done one by one."""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.simd.elements import load_f32, store_f32
from lbrx.devices.cpu.simd.f32 import exp_up_to_zero
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.maths import sqrt
from lbrx.devices.cpu.simd.memory import peek_f32, poke_f32, poke_f64
from lbrx.devices.cpu.simd.scalars import f32_from_bits
from lbrx.devices.cpu.simd.vectors import f32x8, f64x8, lane, lane_max, lane_sum, load, maximum, splat, store, to_f64

NOTHING = np.float32(-np.inf)


@jit
def _largest(row: Any, columns: Any) -> Any:
    like = f32x8(NOTHING)
    highest = splat(like, NOTHING)
    whole = columns // 8
    for i in range(whole):
        highest = maximum(load(like, row, i), highest)
    largest = lane_max(highest)
    for i in range(8 * whole, columns):
        value = load_f32(row, i)
        largest = value if value > largest else largest
    return largest


@jit
def _exp_one(value: Any) -> Any:
    return lane(exp_up_to_zero(f32x8(value)), 0)


def softmax(source: int, target: int, rows: int, columns: int) -> None:
    like = f32x8(0.0)
    whole = columns // 8
    for number in range(rows):
        row, out = source + 4 * columns * number, target + 4 * columns * number
        largest = _largest(row, columns)
        total = f64x8(0.0)
        for i in range(whole):
            value = exp_up_to_zero(load(like, row, i) - largest)
            store(out, i, value)
            total = total + to_f64(value)
        rest = 0.0
        for i in range(8 * whole, columns):
            value = _exp_one(load_f32(row, i) - largest)
            poke_f32(out, i, value)
            rest += np.float64(value)
        scale = np.float32(1.0 / (lane_sum(total) + rest))
        for i in range(whole):
            store(out, i, load(like, out, i) * scale)
        for i in range(8 * whole, columns):
            poke_f32(out, i, peek_f32(out, i) * scale)


def log_totals(source: int, target: int, rows: int, columns: int) -> None:
    """Two f64 for every row: its largest element, and the sum of e to the power of what elements are above that."""
    like = f32x8(0.0)
    whole = columns // 8
    for number in range(rows):
        row = source + 4 * columns * number
        largest = _largest(row, columns)
        total, more = f64x8(0.0), f64x8(0.0)
        for i in range(whole // 2):
            total = total + to_f64(exp_up_to_zero(load(like, row, 2 * i) - largest))
            more = more + to_f64(exp_up_to_zero(load(like, row, 2 * i + 1) - largest))
        rest = 0.0
        for i in range(whole // 2 * 16, columns):
            rest += np.float64(_exp_one(load_f32(row, i) - largest))
        poke_f64(target, 2 * number, np.float64(largest))
        poke_f64(target, 2 * number + 1, lane_sum(total + more) + rest)


@jit
def _mean(row: Any, columns: Any) -> Any:
    like = f32x8(0.0)
    whole = columns // 8
    total = f64x8(0.0)
    for i in range(whole):
        total = total + to_f64(load(like, row, i))
    rest = 0.0
    for i in range(8 * whole, columns):
        rest += np.float64(load_f32(row, i))
    return (lane_sum(total) + rest) / columns


@jit
def _mean_square(row: Any, columns: Any, mean: Any) -> Any:
    """The mean of the squared differences from ``mean``, in f64."""
    like = f32x8(0.0)
    whole = columns // 8
    total = f64x8(0.0)
    for i in range(whole):
        difference = to_f64(load(like, row, i)) - mean
        total = total + difference * difference
    rest = 0.0
    for i in range(8 * whole, columns):
        difference = np.float64(load_f32(row, i)) - mean
        rest += difference * difference
    return (lane_sum(total) + rest) / columns


def rms_norm(source: int, target: int, rows: int, columns: int, weight: int, eps_bits: int) -> None:
    like = f32x8(0.0)
    whole = columns // 8
    eps = np.float64(f32_from_bits(eps_bits))
    for number in range(rows):
        row, out = source + 4 * columns * number, target + 4 * columns * number
        scale = np.float32(1.0 / sqrt(_mean_square(row, columns, 0.0) + eps))
        for i in range(whole):
            store(out, i, load(like, row, i) * scale * load(like, weight, i))
        for i in range(8 * whole, columns):
            store_f32(out, i, load_f32(row, i) * scale * load_f32(weight, i))


def layer_norm(source: int, target: int, rows: int, columns: int, weight: int, bias: int, eps_bits: int) -> None:
    like = f32x8(0.0)
    whole = columns // 8
    eps = np.float64(f32_from_bits(eps_bits))
    for number in range(rows):
        row, out = source + 4 * columns * number, target + 4 * columns * number
        mean = _mean(row, columns)
        scale = np.float32(1.0 / sqrt(_mean_square(row, columns, mean) + eps))
        middle = np.float32(mean)
        for i in range(whole):
            store(out, i, (load(like, row, i) - middle) * scale * load(like, weight, i) + load(like, bias, i))
        for i in range(8 * whole, columns):
            store_f32(out, i, (load_f32(row, i) - middle) * scale * load_f32(weight, i) + load_f32(bias, i))
