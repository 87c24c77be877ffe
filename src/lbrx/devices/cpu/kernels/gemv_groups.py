"""Rows of codes whose scales and offsets are stored apart times a few vectors: MLX's codings, and integers.

A row is the sum over its groups of scale x sum(code x) + offset x sum(x). The vectors are coded as in `coded_vectors`,
32 numbers at a time; products of codes are summed exactly.

``job`` is the address of int64 numbers: the codes of the weight, the result, columns; codes, scales and sums of the
vectors, how many they are, the columns of the result, the vectors; the numbers of `take_scales`; and an f32 that is
set to 0 if all numbers of the vectors are finite.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.kernels.group_scales import take_scales
from lbrx.devices.cpu.simd.bit_stream import (
    DOUBLED_E2M1,
    floats_of_halves,
    larger_magnitudes,
    load_e4m3_halves,
    nan_if_e4m3_nan,
)
from lbrx.devices.cpu.simd.code_products import (
    NUMBERS_BYTES,
    STORE_NUMBERS,
    TOGETHER,
    make_dots,
    make_first_lanes,
    sum_lanes,
)
from lbrx.devices.cpu.simd.coded_dot import TOP
from lbrx.devices.cpu.simd.elements import load_i64 as number
from lbrx.devices.cpu.simd.elements import store_f32
from lbrx.devices.cpu.simd.f32 import absolute, fused, nearest_even
from lbrx.devices.cpu.simd.instruction import inlined
from lbrx.devices.cpu.simd.memory import peek_f32, poke_f32, prefetch_line, stack_bytes
from lbrx.devices.cpu.simd.shuffles import first_half, make_shuffle, second_half
from lbrx.devices.cpu.simd.vectors import (
    f32x8,
    f32x16,
    f32x32,
    lane_max,
    lane_sum,
    load,
    make_filled,
    splat,
    to_f32,
    to_i32,
)

TINY = np.float32(2.0**-100)
ZERO = np.float32(0.0)
SCALES, WATCHED = 9, 16  # of the numbers of a job
AHEAD = 4096  # bytes
SEGMENT = 128  # blocks of a row whose scales are made at a time
SEGMENT_BYTES = 4 * (2 * SEGMENT + 16)
DIVISOR = np.float32(256.0)  # what `load_e4m3_halves` divides by
f32x4, i16x32 = make_filled("f32", 4), make_filled("i16", 32)
PAIRS = make_shuffle([lane // 2 for lane in range(8)])
FIRST, FIRST_TWO, FIRST_THREE = (make_first_lanes(count) for count in (1, 2, 3))


# -- coding vectors ----------------------------------------------------------------------------------------------------


def _make_code(bits: int) -> Any:
    store_numbers = STORE_NUMBERS[bits]

    def code(job: int) -> None:
        """Code all vectors. Each takes the memory of whole fours of blocks."""
        blocks, x = number(job, 2) // 32, number(job, 8)
        fours = (blocks + TOGETHER - 1) // TOGETHER
        zero = ZERO
        for vector in range(number(job, 6)):
            codes = number(job, 3) + NUMBERS_BYTES * fours * vector
            offset = 4 * TOGETHER * fours * vector
            scales, sums = number(job, 4) + offset, number(job, 5) + offset
            for block in range(blocks):
                values = load(f32x32(0.0), x, blocks * vector + block)
                largest = lane_max(absolute(values))
                is_tiny = largest < TINY
                coded = nearest_even(values * (ZERO if is_tiny else TOP / largest))
                scale = ZERO if is_tiny else largest / TOP
                store_numbers(codes + NUMBERS_BYTES * (block // TOGETHER), block % TOGETHER, to_i32(coded))
                poke_f32(scales, block, scale)
                poke_f32(sums, block, lane_sum(coded) * scale)
                zero += lane_sum(values * ZERO)
        store_f32(job + 8 * WATCHED, 0, zero)

    return code


code_2, code_3, code_4, code_8 = (_make_code(bits) for bits in (2, 3, 4, 8))


# -- rows --------------------------------------------------------------------------------------------------------------


def _make_rows(bits: int, flips_top: bool, table: tuple[int, ...] = (), scaled: int = 32) -> Any:
    """A function for a weight with codes of so many bits; with ``flips_top`` the highest bit of a code is turned.

    ``table`` has twice the values that codes stand for; then there are no offsets. ``scaled`` is 16 or a multiple of 32
    elements that have one scale.
    """
    dot_four, dot_two, dot_first, dot_third = make_dots(bits, flips_top, table)
    lanes, block_bytes, per_block = sum_lanes(bits), 4 * bits, max(32 // scaled, 1)
    zeros, lines = make_filled("f32", TOGETHER * lanes), -(-TOGETHER * block_bytes // 64)
    spread = make_shuffle([lane * per_block // lanes for lane in range(TOGETHER * lanes)])
    first_units, first_two_units, first_three_units = (make_first_lanes(count * per_block) for count in (1, 2, 3))
    factor = np.float32(0.5 if table else 1.0)
    has_lows, is_fine = not table, per_block == 2

    @inlined
    def units_of(scales: Any, x_scales: Any, four: Any) -> Any:
        x_four = load(f32x4(0.0), x_scales, four)
        return load(f32x8(0.0), scales, four) * PAIRS(x_four) if is_fine else load(x_four, scales, four) * x_four

    @inlined
    def dot(codes: Any, blocks: Any, x: Any, x_scales: Any, x_sums: Any, scales: Any, lows: Any) -> Any:
        total, low_total, like = zeros(0.0), f32x4(0.0), f32x4(0.0)
        fours, rest = blocks // TOGETHER, blocks % TOGETHER
        for four in range(fours):
            stored = codes + TOGETHER * block_bytes * four
            for line in range(lines):
                prefetch_line(stored + AHEAD + 64 * line)
            if has_lows:
                low_total = fused(load(like, lows, four), load(like, x_sums, four), low_total)
            units = units_of(scales, x_scales, four)
            total = fused(to_f32(dot_four(stored, x + NUMBERS_BYTES * four)), spread(units), total)
        if rest > 0:
            stored, numbers = codes + TOGETHER * block_bytes * fours, x + NUMBERS_BYTES * fours
            units = units_of(scales, x_scales, fours)
            own_lows, own_sums = load(like, lows, fours), load(like, x_sums, fours)
            if rest == 1:
                units, own_lows, own_sums = first_units(units), FIRST(own_lows), FIRST(own_sums)
                sums = dot_first(stored, numbers)
            elif rest == 2:
                units, own_lows, own_sums = first_two_units(units), FIRST_TWO(own_lows), FIRST_TWO(own_sums)
                sums = dot_two(stored, numbers)
            else:
                units, own_lows, own_sums = first_three_units(units), FIRST_THREE(own_lows), FIRST_THREE(own_sums)
                sums = dot_two(stored, numbers) + dot_third(stored, numbers)
            if has_lows:
                low_total = fused(own_lows, own_sums, low_total)
            total = fused(to_f32(sums), spread(units), total)
        return lane_sum(total) * factor + lane_sum(low_total)

    def rows(job: int, row_bytes: int, first: int, stop: int) -> None:
        scales, lows, work = stack_bytes(SEGMENT_BYTES), stack_bytes(SEGMENT_BYTES), stack_bytes(SEGMENT_BYTES)
        blocks = number(job, 2) // 32
        fours_of_vector, vectors = (blocks + TOGETHER - 1) // TOGETHER, number(job, 6)
        out, out_columns = number(job, 1), number(job, 7)
        together = max(SEGMENT // blocks, 1)
        for row in range(first, stop, together):
            count = min(together, stop - row)
            for start in range(0, blocks, SEGMENT):
                length = min(SEGMENT, blocks - start)
                block = blocks * row + start
                first_scale, stop_scale = per_block * block, per_block * (block + blocks * (count - 1) + length)
                take_scales(job + 8 * SCALES, first_scale, stop_scale, scales, lows if has_lows else 0, work)
                for own in range(count):
                    stored = number(job, 0) + row_bytes * (row + own) + block_bytes * start
                    own_scales, own_lows = scales + 4 * per_block * blocks * own, lows + 4 * blocks * own
                    for vector in range(vectors):
                        at = fours_of_vector * vector + start // TOGETHER
                        x, x_scales = number(job, 3) + NUMBERS_BYTES * at, number(job, 4) + 16 * at
                        result = dot(stored, length, x, x_scales, number(job, 5) + 16 * at, own_scales, own_lows)
                        target = out_columns * vector + row + own
                        if start > 0:
                            result += peek_f32(out, target)
                        poke_f32(out, target, result)

    return rows


affine_2, affine_3, affine_4, affine_5, affine_6 = (_make_rows(bits, flips_top=False) for bits in range(2, 7))
affine_8, integers_2, integers_4 = (_make_rows(bits, flips_top=True) for bits in (8, 2, 4))
integers_8 = _make_rows(8, flips_top=False)
mxfp4, nvfp4 = (_make_rows(4, False, DOUBLED_E2M1, scaled) for scaled in (32, 16))


def mxfp8(job: int, row_bytes: int, first: int, stop: int) -> None:
    """Floats of eight bits times vectors of f32: the numbers of the coded vectors are not used."""
    scales, work = stack_bytes(SEGMENT_BYTES), stack_bytes(SEGMENT_BYTES)
    like, columns, out, out_columns = f32x16(0.0), number(job, 2), number(job, 1), number(job, 7)
    blocks = columns // 32
    for row in range(first, stop):
        for start in range(0, blocks, SEGMENT):
            length = min(SEGMENT, blocks - start)
            take_scales(job + 8 * SCALES, blocks * row + start, blocks * row + start + length, scales, 0, work)
            stored = number(job, 0) + row_bytes * row + 32 * start
            for vector in range(number(job, 6)):
                x, even, odd = number(job, 8) + 4 * columns * vector + 128 * start, f32x16(0.0), f32x16(0.0)
                largest = i16x32(0)
                for block in range(length):
                    prefetch_line(stored + 32 * block + AHEAD)
                    words = load_e4m3_halves(stored + 32 * block)
                    largest = larger_magnitudes(largest, words)
                    values, scale = floats_of_halves(words), splat(like, peek_f32(scales, block))
                    high = second_half(values) * load(like, x, 2 * block + 1)
                    products = fused(first_half(values), load(like, x, 2 * block), high)
                    even, odd = odd, fused(products, scale, even)  # so that a block does not wait for the last one
                result, target = (lane_sum(even + odd) + nan_if_e4m3_nan(largest)) * DIVISOR, out_columns * vector + row
                poke_f32(out, target, result + peek_f32(out, target) if start > 0 else result)


def no_code(job: int) -> None:
    """The coder of `mxfp8`."""
    store_f32(job + 8 * WATCHED, 0, ZERO)
