"""Rows of codes whose scales and offsets are stored apart times many vectors, as sums of products of i16.

There is a function for each kind of codes. Jobs are those of `gemm_i16`, and behind them the numbers of `take_scales`.

Floats of four bits are doubled, which makes them integers. Floats of eight bits would be integers of 18 bits, but sums
of 32 products allow 11 bits and a sign. They are rounded to multiples of a unit, a power of two for each block of 32.
That changes a weight by at most 1 / 2048 of the largest one of its block, and by nothing if it is above 1 / 128 of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.kernels.gemm_i16 import make_gemm
from lbrx.devices.cpu.kernels.group_scales import take_scales
from lbrx.devices.cpu.kernels.quantized_rows_i16 import CODE_ROW_BYTES, SCALE_ROW_BYTES, STEP
from lbrx.devices.cpu.simd.bit_stream import (
    BIT_WIDTHS,
    LOAD_16_CODES,
    LOAD_16_INTEGERS,
    e4m3_values,
    store_doubled_e2m1,
)
from lbrx.devices.cpu.simd.elements import load_i64 as number
from lbrx.devices.cpu.simd.f32 import ROUNDER, absolute, fused
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.memory import poke_f32, stack_bytes
from lbrx.devices.cpu.simd.scalars import bits_from_f32, f32_from_bits
from lbrx.devices.cpu.simd.vectors import (
    bits_of,
    f32x8,
    f32x16,
    i32x16,
    lane_max,
    lane_sum,
    load,
    load_u8,
    maximum,
    splat,
    store,
    store_i16,
)

SCALES = 10  # of the numbers of a job
WORK_BYTES, UNIT_BYTES = 4 * (STEP // 32 + 16), 4 * (STEP // 16 + 16)
E4M3_LEAST = 127 - 6  # the exponent of the least normal number, as f32 has it
ZERO, ONE, HALF = np.float32(0.0), np.float32(1.0), np.float32(0.5)


def _make_take(bits: int, store_block: Any, scaled: int = 32, has_lows: bool = True) -> Any:
    """A ``take`` function. ``store_block`` writes 32 codes as i16, and returns their unit.

    ``scaled`` elements have one scale.
    """
    per_block = 32 // scaled

    @jit
    def take(
        job: Any, blocks: Any, rows: Any, columns: Any, first: Any, stop: Any, codes: Any, scales: Any, lows: Any
    ) -> None:
        work, units = stack_bytes(WORK_BYTES), stack_bytes(UNIT_BYTES)
        row_bytes, count = columns * bits // 8, (stop - first) // 32
        first_row = (blocks - number(job, 0)) // row_bytes
        for row in range(rows):
            stored = blocks + row_bytes * row + first * bits // 8
            out = codes + 4 * CODE_ROW_BYTES * (row // 4) + 64 * (row % 4)
            for block in range(count):
                unit = store_block(stored + 4 * bits * block, out + 256 * block)
                for own in range(0 if has_lows else per_block):
                    poke_f32(units, per_block * block + own, unit)
            own_scales, own_lows = scales + SCALE_ROW_BYTES * row, lows + SCALE_ROW_BYTES * row
            start = columns // scaled * (first_row + row) + first // scaled
            take_scales(job + 8 * SCALES, start, start + per_block * count, own_scales, own_lows, work)
            for at in range((per_block * count + 7) // 8):
                if has_lows:  # they are taken off
                    store(own_lows, at, f32x8(0.0) - load(f32x8(0.0), own_lows, at))
                else:
                    own_units = load(f32x8(0.0), units, at)
                    store(own_scales, at, load(own_units, own_scales, at) * own_units)

    return take


def _make_gemm(bits: int, load_codes: Any, offset: int = 0) -> Any:
    """``offset`` is taken off every code."""

    @jit
    def store_block(stored: Any, out: Any) -> Any:
        for half in range(2):
            store_i16(out + 32 * half, load_codes(stored + 2 * bits * half) - i32x16(offset))
        return ONE

    return make_gemm(_make_take(bits, store_block), 32, has_lows=True)


@jit
def _store_e2m1(stored: Any, out: Any) -> Any:
    store_doubled_e2m1(stored, out)
    return HALF


@jit
def _store_e4m3(stored: Any, out: Any) -> Any:
    """The largest number becomes 1024 to 1920 units. The unit is NaN if a number is."""
    like = f32x16(0.0)
    low, high = e4m3_values(load_u8(like, stored)), e4m3_values(load_u8(like, stored + 16))
    largest, zero = lane_max(maximum(absolute(low), absolute(high))), lane_sum((low + high) * ZERO)
    exponent = max(bits_from_f32(largest) >> 23, E4M3_LEAST)
    per_unit, rounder = splat(like, f32_from_bits((264 - exponent) << 23)), splat(like, ROUNDER)
    store_i16(out, bits_of(fused(low, per_unit, rounder)))
    store_i16(out + 32, bits_of(fused(high, per_unit, rounder)))
    return f32_from_bits((exponent - 10) << 23) + zero


affine_2, affine_3, affine_4, affine_5, affine_6, affine_8 = (
    _make_gemm(bits, LOAD_16_CODES[bits], 128 if bits == 8 else 0) for bits in BIT_WIDTHS
)
integers_2, integers_4, integers_8 = (
    _make_gemm(bits, LOAD_16_INTEGERS[bits], 0 if bits == 8 else -(1 << (bits - 1))) for bits in (2, 4, 8)
)
"""Codes of 2 and 4 bits are made unsigned, as `gemv_groups` has them."""
mxfp4, nvfp4 = (make_gemm(_make_take(4, _store_e2m1, scaled, has_lows=False), scaled, False) for scaled in (32, 16))
mxfp8 = make_gemm(_make_take(8, _store_e4m3, has_lows=False), 32, has_lows=False)
