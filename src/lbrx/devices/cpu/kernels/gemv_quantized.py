"""Rows of quantized blocks times a few vectors, as sums of products of integers.

A vector is coded first, 32 numbers at a time: i16 codes, and a scale of the largest magnitude / 32767. Codes of both
sides are multiplied and added exactly; scales come in f32. ``out`` is laid out as in `gemv_float`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.kernels.gemv_quantized_512 import dot_q4_0_512, dot_q4_k_512
from lbrx.devices.cpu.simd.elements import load_f16, load_f32, store_f32
from lbrx.devices.cpu.simd.elements import load_i64 as number
from lbrx.devices.cpu.simd.f32 import absolute, fused, nearest_even
from lbrx.devices.cpu.simd.instruction import inlined, jit
from lbrx.devices.cpu.simd.int_dot import (
    DOT_SIX_BITS,
    LANE_PAIRS,
    PARTED_PAIRS,
    SPREAD_LANES,
    dot_bytes,
    dot_high_halves,
    dot_low_halves,
    dot_one_block,
    dot_two_blocks,
    parted_scales_of_18_bytes,
    scales_of_34_bytes,
    six_bit_minimums,
    six_bit_scales,
    store_parted,
)
from lbrx.devices.cpu.simd.memory import prefetch_3_lines, prefetch_5_lines
from lbrx.devices.cpu.simd.processor import HAS_512_BITS
from lbrx.devices.cpu.simd.vectors import f32x8, f32x16, f32x32, lane_max, lane_sum, load, load_i8, to_f32, to_i32

TOP = np.float32(32767.0)
TINY = np.float32(2.0**-100)
AHEAD = 4096  # bytes
WATCHED = 96  # bytes behind the beginning of a job
EIGHT, SIXTEENTH = np.float32(8.0), np.float32(0.0625)
TOGETHER = 4 if HAS_512_BITS else 2
SIX_0, SIX_1, SIX_2, SIX_3 = DOT_SIX_BITS
LANE_0, LANE_1, LANE_2, LANE_3, LANE_4, LANE_5, LANE_6, LANE_7 = SPREAD_LANES
PAIR_0, PAIR_1, PAIR_2, PAIR_3, PAIR_4, PAIR_5, PAIR_6, PAIR_7 = LANE_PAIRS
PARTED_0, PARTED_1, PARTED_2, PARTED_3 = PARTED_PAIRS


def code_vectors(job: int) -> None:
    """Code vectors in blocks of 32 numbers. The sums are those of blocks as coded; tiny blocks become zeros.

    ``job`` is that of `gemv_tasks.coded_rows`, with the address of the vectors behind it; at WATCHED it gets an f32
    that is 0 if all numbers are finite.
    """
    code_evenly(job)


@jit
def code_evenly(job: Any) -> None:
    codes, scales, sums, x = number(job, 5), number(job, 6), number(job, 7), number(job, 10)
    zero = np.float32(0.0)
    for block in range(number(job, 4) // 32 * number(job, 8)):
        zero += _code_block(x, block, codes + 64 * block, 16, 32, scales + 4 * block, sums + 4 * block)
    store_f32(job + WATCHED, 0, zero)


def code_for_q4_0(job: int) -> None:
    """The same for Q4_0, which takes the blocks of a vector two or four at a time. Buffers hold whole groups.

    Two at a time, scales and sums of whole groups of eight blocks are stored in the order of `PARTED_LANES`.
    """
    codes, scales, sums, x = number(job, 5), number(job, 6), number(job, 7), number(job, 10)
    per_vector = number(job, 4) // 32
    groups, whole = (per_vector + TOGETHER - 1) // TOGETHER, per_vector // 8 * 8
    zero = np.float32(0.0)
    for vector in range(number(job, 8)):
        for own_block in range(per_vector):
            target = codes + 64 * TOGETHER * (groups * vector + own_block // TOGETHER) + 16 * (own_block % TOGETHER)
            own = own_block
            if TOGETHER == 2 and own_block < whole:
                own = own_block // 8 * 8 + own_block % 8 // 2 + own_block % 2 * 4
            at = 4 * (per_vector * vector + own)
            block = per_vector * vector + own_block
            zero += _code_block(x, block, target, 16 * TOGETHER, 32 * TOGETHER, scales + at, sums + at)
    store_f32(job + WATCHED, 0, zero)


def code_for_q4_k(job: int) -> None:
    """The same for Q4_K, which takes four blocks at a time where registers are large enough.

    Then the first and the third of them take turns, and so do the others, whose scales are 16 times smaller, as their
    codes are multiplied where they lie: in the high halves of bytes. Scales lie in the order of `SCALE_ORDER`.
    """
    if not HAS_512_BITS:
        code_evenly(job)
        return
    codes, scales, sums, x = number(job, 5), number(job, 6), number(job, 7), number(job, 10)
    zero = np.float32(0.0)
    for block in range(number(job, 4) // 32 * number(job, 8)):
        target = codes + 256 * (block // 4) + 128 * (block % 2) + 32 * (block % 4 // 2)
        own = block // 8 * 8 + block % 2 + 2 * (block % 8 // 4) + 4 * (block % 4 // 2)
        zero += _code_block(x, block, target, 16, 64, scales + 4 * own, sums + 4 * block)
        if block % 2:
            store_f32(scales, own, load_f32(scales, own) * SIXTEENTH)
    store_f32(job + WATCHED, 0, zero)


@jit
def _code_block(x: Any, block: Any, codes: Any, stride: Any, odd: Any, scale_address: Any, sum_address: Any) -> Any:
    """Returns 0 if all numbers of the block are finite, else NaN."""
    values = load(f32x32(0.0), x, block)
    largest = lane_max(absolute(values))
    is_tiny = largest < TINY
    coded = nearest_even(values * (np.float32(0.0) if is_tiny else TOP / largest))
    scale = np.float32(0.0) if is_tiny else largest / TOP
    store_parted(codes, stride, odd, to_i32(coded))
    store_f32(scale_address, 0, scale)
    store_f32(sum_address, 0, lane_sum(coded) * scale)
    return lane_sum(values * np.float32(0.0))


@inlined
def _dot_q8_0(stored: Any, columns: Any, x: Any, x_scales: Any, _x_sums: Any) -> Any:
    count = columns // 32
    even, odd = f32x8(0.0), f32x8(0.0)
    for group in range(count // 8):
        first, numbers = stored + 272 * group, x + 512 * group
        prefetch_5_lines(first + AHEAD)
        units = scales_of_34_bytes(first) * load(even, x_scales, group)
        even = fused(to_f32(dot_bytes(first + 2, numbers)), LANE_0(units), even)
        odd = fused(to_f32(dot_bytes(first + 36, numbers + 64)), LANE_1(units), odd)
        even = fused(to_f32(dot_bytes(first + 70, numbers + 128)), LANE_2(units), even)
        odd = fused(to_f32(dot_bytes(first + 104, numbers + 192)), LANE_3(units), odd)
        even = fused(to_f32(dot_bytes(first + 138, numbers + 256)), LANE_4(units), even)
        odd = fused(to_f32(dot_bytes(first + 172, numbers + 320)), LANE_5(units), odd)
        even = fused(to_f32(dot_bytes(first + 206, numbers + 384)), LANE_6(units), even)
        odd = fused(to_f32(dot_bytes(first + 240, numbers + 448)), LANE_7(units), odd)
    for block in range(count // 8 * 8, count):
        unit = load_f16(stored + 34 * block, 0) * load_f32(x_scales, block)
        even = even + to_f32(dot_bytes(stored + 34 * block + 2, x + 64 * block)) * unit
    return lane_sum(even + odd)


@inlined
def _dot_q4_0(stored: Any, columns: Any, x: Any, x_scales: Any, x_sums: Any) -> Any:
    count = columns // 32
    even, odd, eighths, rest = f32x8(0.0), f32x8(0.0), f32x8(0.0), np.float32(0.0)
    for group in range(count // 8):
        first, numbers = stored + 144 * group, x + 512 * group
        prefetch_3_lines(first + AHEAD)
        own_scales = parted_scales_of_18_bytes(first)
        eighths = eighths + own_scales * load(even, x_sums, group)
        units = own_scales * load(even, x_scales, group)
        even = fused(to_f32(dot_two_blocks(first + 2, first + 20, numbers)), PARTED_0(units), even)
        odd = fused(to_f32(dot_two_blocks(first + 38, first + 56, numbers + 128)), PARTED_1(units), odd)
        even = fused(to_f32(dot_two_blocks(first + 74, first + 92, numbers + 256)), PARTED_2(units), even)
        odd = fused(to_f32(dot_two_blocks(first + 110, first + 128, numbers + 384)), PARTED_3(units), odd)
    for block in range(count // 8 * 8, count):
        own_scale = load_f16(stored + 18 * block, 0)
        rest += own_scale * load_f32(x_sums, block)
        numbers = x + 128 * (block // 2) + 16 * (block % 2)
        unit = own_scale * load_f32(x_scales, block)
        even = even + to_f32(dot_one_block(stored + 18 * block + 2, 0, numbers)) * unit
    return lane_sum((even + odd) - eighths * EIGHT) - rest * EIGHT


@inlined
def _dot_q4_k(blocks: Any, columns: Any, codes: Any, x_scales: Any, x_sums: Any) -> Any:
    even, odd, lows = f32x8(0.0), f32x8(0.0), f32x8(0.0)
    for block in range(columns // 256):
        stored, x = blocks + 144 * block, codes + 512 * block
        prefetch_3_lines(stored + AHEAD)
        units = six_bit_scales(stored + 4) * load(even, x_scales, block) * load_f16(stored, 0)
        lows = lows + six_bit_minimums(stored + 4) * load(even, x_sums, block) * load_f16(stored, 1)
        packed = stored + 16
        even = fused(to_f32(dot_low_halves(packed, x)), LANE_0(units), even)
        odd = fused(to_f32(dot_high_halves(packed, x + 64)), LANE_1(units), odd)
        even = fused(to_f32(dot_low_halves(packed + 32, x + 128)), LANE_2(units), even)
        odd = fused(to_f32(dot_high_halves(packed + 32, x + 192)), LANE_3(units), odd)
        even = fused(to_f32(dot_low_halves(packed + 64, x + 256)), LANE_4(units), even)
        odd = fused(to_f32(dot_high_halves(packed + 64, x + 320)), LANE_5(units), odd)
        even = fused(to_f32(dot_low_halves(packed + 96, x + 384)), LANE_6(units), even)
        odd = fused(to_f32(dot_high_halves(packed + 96, x + 448)), LANE_7(units), odd)
    return lane_sum((even + odd) - lows)


@inlined
def _dot_q6_k(blocks: Any, columns: Any, codes: Any, x_scales: Any, _x_sums: Any) -> Any:
    even, odd = f32x8(0.0), f32x8(0.0)
    for block in range(columns // 256):
        stored, x = blocks + 210 * block, codes + 512 * block
        prefetch_5_lines(stored + AHEAD)
        levels = to_f32(load_i8(f32x16(0.0), stored + 192))
        units = load(even, x_scales, block) * load_f16(stored + 208, 0)
        low, high = stored, stored + 128
        even = fused(to_f32(SIX_0(low, high, x)), PAIR_0(levels) * LANE_0(units), even)
        odd = fused(to_f32(SIX_1(low, high, x + 64)), PAIR_1(levels) * LANE_1(units), odd)
        even = fused(to_f32(SIX_2(low, high, x + 128)), PAIR_2(levels) * LANE_2(units), even)
        odd = fused(to_f32(SIX_3(low, high, x + 192)), PAIR_3(levels) * LANE_3(units), odd)
        low, high, x = stored + 64, stored + 160, x + 256
        even = fused(to_f32(SIX_0(low, high, x)), PAIR_4(levels) * LANE_4(units), even)
        odd = fused(to_f32(SIX_1(low, high, x + 64)), PAIR_5(levels) * LANE_5(units), odd)
        even = fused(to_f32(SIX_2(low, high, x + 128)), PAIR_6(levels) * LANE_6(units), even)
        odd = fused(to_f32(SIX_3(low, high, x + 192)), PAIR_7(levels) * LANE_7(units), odd)
    return lane_sum(even + odd)


def _make_gemv(block_elements: int, block_bytes: int, dot: Any, together: int = 1) -> Any:
    """Rows times vectors. ``dot(row, columns, codes, scales, sums)`` multiplies one row and one vector, whose codes lie
    ``together`` blocks at a time.
    """

    def gemv(
        blocks: int,
        rows: int,
        columns: int,
        codes: int,
        scales: int,
        sums: int,
        vectors: int,
        out: int,
        out_columns: int,
    ) -> None:
        count = columns // 32
        code_bytes = (count + together - 1) // together * 64 * together
        for row in range(rows):
            stored = blocks + block_bytes * (columns // block_elements) * row
            for vector in range(vectors):
                x, x_scales, x_sums = (
                    codes + code_bytes * vector,
                    scales + 4 * count * vector,
                    sums + 4 * count * vector,
                )
                store_f32(out, out_columns * vector + row, dot(stored, columns, x, x_scales, x_sums))

    return gemv


q8_0, q6_k = _make_gemv(32, 34, _dot_q8_0), _make_gemv(256, 210, _dot_q6_k)
q4_0 = _make_gemv(32, 18, dot_q4_0_512 if HAS_512_BITS else _dot_q4_0, TOGETHER)
q4_k = _make_gemv(256, 144, dot_q4_k_512 if HAS_512_BITS else _dot_q4_k)
