"""Rows of codes whose scales and offsets are stored apart times many vectors, as sums of products of i16.

There is a function for each kind of codes. Jobs are those of `gemm_i16`, and behind them the numbers of `take_scales`.
Functions for vectors of 8 bits multiply bytes, as `gemm_i8` does.

Floats of four bits are doubled, which makes them integers. Floats of eight bits would be integers of 18 bits, but sums
of 32 products allow 11 bits and a sign. They are rounded to multiples of a unit, a power of two for each block of 32.
That changes a weight by at most 1 / 2048 of the largest one of its block, and by nothing if it is above 1 / 128 of it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lbrx.devices.cpu.kernels import gemm_i8, gemm_i16
from lbrx.devices.cpu.kernels.coded_names import parse_coded_name
from lbrx.devices.cpu.kernels.group_scales import take_scales
from lbrx.devices.cpu.kernels.quantized_rows_i8 import LOWS_BYTES
from lbrx.devices.cpu.kernels.quantized_rows_i16 import CODE_ROW_BYTES, SCALE_ROW_BYTES, STEP
from lbrx.devices.cpu.simd.bit_stream import (
    BIT_WIDTHS,
    LOAD_16_CODES,
    LOAD_16_INTEGERS,
    e4m3_values,
    store_doubled_e2m1,
    store_doubled_e2m1_in_bytes,
)
from lbrx.devices.cpu.simd.elements import load_i64 as number
from lbrx.devices.cpu.simd.f32 import ROUNDER, absolute, fused
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.memory import poke_f32, poke_i32, stack_bytes
from lbrx.devices.cpu.simd.scalars import bits_from_f32, f32_from_bits
from lbrx.devices.cpu.simd.vectors import (
    bits_of,
    f32x8,
    f32x16,
    i32x16,
    lane_max,
    lane_sum,
    load,
    load_i8,
    load_u8,
    maximum,
    splat,
    store,
    store_i16,
    store_u8,
    to_f32,
)

SCALES = 10  # of the numbers of a job
WORK_BYTES, UNIT_BYTES = 4 * (STEP // 32 + 16), 4 * (STEP // 16 + 16)
E4M3_LEAST = 127 - 6  # the exponent of the least normal number, as f32 has it
ZERO, ONE, HALF, SUM_FACTOR = np.float32(0.0), np.float32(1.0), np.float32(0.5), np.float32(-128.0)


def _make_store_integers(store: Any, code_bytes: int, load_codes: Any, half_bytes: int, offset: int) -> Any:
    """Stores 32 codes less an offset; ``store`` writes 16 of them."""

    @jit
    def store_block(stored: Any, out: Any) -> Any:
        for half in range(2):
            store(out + 16 * code_bytes * half, load_codes(stored + half_bytes * half) - i32x16(offset))
        return ONE

    return store_block


def _make_store_e2m1(store_doubled: Any) -> Any:
    @jit
    def store_block(stored: Any, out: Any) -> Any:
        store_doubled(stored, out)
        return HALF

    return store_block


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


@jit
def _store_sums(codes: Any, sums: Any, block: Any, per_block: Any) -> None:
    """-128 times the sums of 32 codes, or of both halves; they are exact."""
    like = f32x16(0.0)
    low, high = to_f32(load_i8(like, codes)), to_f32(load_i8(like, codes + 16))
    if per_block == 2:
        poke_i32(sums, 2 * block, np.int32(lane_sum(low) * SUM_FACTOR))
        poke_i32(sums, 2 * block + 1, np.int32(lane_sum(high) * SUM_FACTOR))
    else:
        poke_i32(sums, block, np.int32(lane_sum(low + high) * SUM_FACTOR))


class Coding(NamedTuple):
    """``store_block`` writes 32 codes as i16, ``store_bytes`` as i8 if they fit; both return their unit.

    ``scaled`` elements have one scale.
    """

    bits: int
    store_block: Any
    store_bytes: Any
    scaled: int = 32
    has_lows: bool = True


def _make_take(coding: Coding, in_bytes: bool) -> Any:
    """A ``take`` function of `quantized_rows_i16` or of `quantized_rows_i8`."""
    bits, scaled, has_lows, per_block = coding.bits, coding.scaled, coding.has_lows, 32 // coding.scaled
    store_block, block_bytes = (coding.store_bytes, 32) if in_bytes else (coding.store_block, 256)

    @jit
    def take(
        job: Any, blocks: Any, rows: Any, columns: Any, first: Any, stop: Any, codes: Any, scales: Any, lows: Any
    ) -> None:
        work, units = stack_bytes(WORK_BYTES), stack_bytes(UNIT_BYTES)
        row_bytes, count = columns * bits // 8, (stop - first) // 32
        first_row = (blocks - number(job, 0)) // row_bytes
        for row in range(rows):
            stored = blocks + row_bytes * row + first * bits // 8
            out = codes + (STEP * row if in_bytes else 4 * CODE_ROW_BYTES * (row // 4) + 64 * (row % 4))
            own_scales, own_lows = scales + SCALE_ROW_BYTES * row, lows + SCALE_ROW_BYTES * row
            for block in range(count):
                unit = store_block(stored + 4 * bits * block, out + block_bytes * block)
                if in_bytes:
                    _store_sums(out + block_bytes * block, own_lows + LOWS_BYTES, block, per_block)
                for own in range(0 if has_lows else per_block):
                    poke_f32(units, per_block * block + own, unit)
            start = columns // scaled * (first_row + row) + first // scaled
            take_scales(job + 8 * SCALES, start, start + per_block * count, own_scales, own_lows, work)
            for at in range((per_block * count + 7) // 8):
                if has_lows:  # they are taken off
                    store(own_lows, at, f32x8(0.0) - load(f32x8(0.0), own_lows, at))
                else:
                    own_units = load(f32x8(0.0), units, at)
                    store(own_scales, at, load(own_units, own_scales, at) * own_units)

    return take


def _integers(bits: int, load_codes: Any, offset: int = 0) -> Coding:
    """``offset`` is taken off every code."""
    given = load_codes, 2 * bits, offset
    return Coding(bits, _make_store_integers(store_i16, 2, *given), _make_store_integers(store_u8, 1, *given))


def _floats(scaled: int) -> Coding:
    in_words, in_bytes = (_make_store_e2m1(each) for each in (store_doubled_e2m1, store_doubled_e2m1_in_bytes))
    return Coding(4, in_words, in_bytes, scaled, has_lows=False)


# Codes of 2 and 4 bits are made unsigned, as `gemv_groups` has them.
_CODINGS = {
    **{f"affine_{bits}": _integers(bits, LOAD_16_CODES[bits], 128 if bits == 8 else 0) for bits in BIT_WIDTHS},
    **{
        f"integers_{bits}": _integers(bits, LOAD_16_INTEGERS[bits], 0 if bits == 8 else -(1 << (bits - 1)))
        for bits in (2, 4, 8)
    },
    "mxfp4": _floats(32),
    "nvfp4": _floats(16),
    "mxfp8": Coding(8, _store_e4m3, None, has_lows=False),
}


def __getattr__(name: str) -> Any:
    """The function of a coding, made when it is compiled; for vectors of 8 bits if the name says so."""
    coding_name, bits = parse_coded_name(name)
    coding = _CODINGS.get(coding_name)
    if coding is None or (bits == 8 and coding.store_bytes is None):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    make_gemm = gemm_i8.make_gemm if bits == 8 else gemm_i16.make_gemm
    return make_gemm(_make_take(coding, bits == 8), coding.scaled, coding.has_lows)
