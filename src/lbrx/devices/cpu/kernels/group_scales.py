"""Scales and offsets of groups, stored apart from the codes in any type, as f32 for every block of codes."""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.simd import f32 as lanes
from lbrx.devices.cpu.simd.bit_stream import e4m3_values
from lbrx.devices.cpu.simd.elements import load_bf16, load_byte, load_f8_e4m3, load_f16, load_f32
from lbrx.devices.cpu.simd.elements import load_i64 as number
from lbrx.devices.cpu.simd.f32 import fused
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.memory import poke_f32
from lbrx.devices.cpu.simd.scalars import f32_from_bits
from lbrx.devices.cpu.simd.shuffles import make_shuffle
from lbrx.devices.cpu.simd.vectors import (
    f32x8,
    f32x16,
    floats_of,
    load,
    load_i8,
    load_u8,
    select,
    splat,
    store,
    to_f32,
)

F32, F16, BF16, I8, E8M0, E4M3 = range(6)
"""The types of numbers, as jobs give them."""
load_f16_lanes, load_bf16_lanes = lanes.load_f16, lanes.load_bf16
TWICE = make_shuffle([lane // 2 for lane in range(16)])
FOUR_TIMES = make_shuffle([lane // 4 for lane in range(16)])
LEAST_POWER_BITS = np.int32(1 << 22)
ZERO, NOT_A_NUMBER = np.float32(0.0), np.float32(np.nan)


@jit
def _number(source: Any, index: Any, dtype: Any) -> Any:
    if dtype == F32:
        return load_f32(source, index)
    if dtype == F16:
        return load_f16(source, index)
    if dtype == BF16:
        return load_bf16(source, index)
    if dtype == I8:
        return np.float32(np.int8(load_byte(source, index)))
    if dtype == E4M3:
        return load_f8_e4m3(source, index)
    exponent = np.int64(load_byte(source, index))
    if exponent == 255:
        return NOT_A_NUMBER
    return f32_from_bits(exponent << 23 if exponent > 0 else 1 << 22)


@jit
def _powers_of_two(exponents: Any) -> Any:
    """Scales of eight bits that are exponents: 255 is NaN."""
    powers = floats_of(select(exponents > 0, exponents << 23, splat(exponents, LEAST_POWER_BITS)))
    return select(exponents < 255, powers, splat(powers, NOT_A_NUMBER))


@jit
def _convert_vectors(like: Any, lanes: Any, source: Any, dtype: Any, vectors: Any, out: Any) -> None:
    """So many vectors of numbers of a type as f32."""
    if dtype == F16:
        for number in range(vectors):
            store(out, number, load_f16_lanes(like, source, number))
    elif dtype == BF16:
        for number in range(vectors):
            store(out, number, load_bf16_lanes(like, source, number))
    elif dtype == F32:
        for number in range(vectors):
            store(out, number, load(like, source, number))
    elif dtype == I8:
        for number in range(vectors):
            store(out, number, to_f32(load_i8(like, source + lanes * number)))
    elif dtype == E8M0:
        for number in range(vectors):
            store(out, number, _powers_of_two(load_u8(like, source + lanes * number)))
    else:
        for number in range(vectors):
            store(out, number, e4m3_values(load_u8(like, source + lanes * number)))


@jit
def _convert(source: Any, dtype: Any, count: Any, out: Any) -> None:
    """Numbers of a type as f32. Nothing behind the last is read."""
    done = count // 16 * 16
    _convert_vectors(f32x16(0.0), 16, source, dtype, count // 16, out)
    if count - done >= 8:
        _convert_vectors(f32x8(0.0), 8, source + item_bytes(dtype) * done, dtype, 1, out + 4 * done)
        done += 8
    for index in range(done, count):
        poke_f32(out, index, _number(source, index, dtype))


@jit
def numbers_of_blocks(source: Any, dtype: Any, per_number: Any, first: Any, stop: Any, out: Any, work: Any) -> None:
    """The number of each block from ``first`` to ``stop`` - 1, when every number is that of so many blocks.

    ``first`` begins a new number, unless more than four blocks have one. ``out`` and ``work`` have space for sixteen
    f32 more than blocks.
    """
    if per_number == 1:
        _convert(source + first * item_bytes(dtype), dtype, stop - first, out)
        return
    if per_number == 2 or per_number == 4:
        count = (stop - first) // per_number
        _convert(source + first // per_number * item_bytes(dtype), dtype, count, work)
        if per_number == 2:
            for number in range((count + 7) // 8):
                store(out, number, TWICE(load(f32x8(0.0), work, number)))
        else:
            for number in range((count + 3) // 4):
                store(out, number, FOUR_TIMES(load(f32x8(0.0), work + 16 * number, 0)))
        return
    block = first
    while block < stop:
        index = block // per_number
        value, end = _number(source, index, dtype), min((index + 1) * per_number, stop)
        for own in range(block, end):
            poke_f32(out, own - first, value)
        block = end


@jit
def item_bytes(dtype: Any) -> Any:
    """The bytes of a number."""
    if dtype == F32:
        return 4
    return 2 if dtype in (F16, BF16) else 1


@jit
def _make_lows(lows: Any, scales: Any, blocks: Any, are_zero_points: Any, added: Any) -> None:
    """Offsets as f32: what a block adds to a result for each x, given what is added to every code."""
    like = f32x8(0.0)
    for at in range((blocks + 7) // 8):
        scale, offset = load(like, scales, at), load(like, lows, at)
        if are_zero_points:
            store(lows, at, (splat(like, added) - offset) * scale)
        else:
            store(lows, at, fused(splat(like, added), scale, offset))


@jit
def take_scales(job: Any, first: Any, stop: Any, scales: Any, lows: Any, work: Any) -> None:
    """Scales of some blocks of a weight, counted through all rows, and what a block adds for each x.

    ``job`` is the address of int64 numbers: scales and offsets (0: none) of the weight, blocks with one scale, the
    types of scales and of offsets, whether offsets are zero points, and what is added to every code. Targets have space
    for sixteen f32 more than blocks. ``lows`` is 0 for a weight that cannot have any.
    """
    per_scale, offsets = number(job, 2), number(job, 1)
    numbers_of_blocks(number(job, 0), number(job, 3), per_scale, first, stop, scales, work)
    if offsets != 0:
        numbers_of_blocks(offsets, number(job, 4), per_scale, first, stop, lows, work)
    elif lows != 0:
        for at in range((stop - first + 7) // 8):
            store(lows, at, f32x8(0.0))
    are_zero_points, added = number(job, 5) != 0, np.float32(number(job, 6))
    if are_zero_points or added != ZERO:
        _make_lows(lows, scales, stop - first, are_zero_points, added)
