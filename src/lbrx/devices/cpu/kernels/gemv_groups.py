"""Rows of codes whose scales and offsets are stored apart times a few vectors: MLX's affine coding, and integers.

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
from lbrx.devices.cpu.simd.shuffles import make_shuffle
from lbrx.devices.cpu.simd.vectors import (
    f32x32,
    lane_max,
    lane_sum,
    load,
    make_filled,
    to_f32,
    to_i32,
)

TINY = np.float32(2.0**-100)
ZERO = np.float32(0.0)
SCALES, WATCHED = 9, 16  # of the numbers of a job
AHEAD = 4096  # bytes
SEGMENT = 128  # blocks of a row whose scales are made at a time
SEGMENT_BYTES = 4 * (SEGMENT + 16)
f32x4 = make_filled("f32", 4)
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


def _make_rows(bits: int, flips_top: bool) -> Any:
    """A function for a weight with codes of so many bits; with ``flips_top`` the highest bit of a code is turned."""
    dot_four, dot_two, dot_first, dot_third = make_dots(bits, flips_top)
    lanes, block_bytes = sum_lanes(bits), 4 * bits
    zeros, lines = make_filled("f32", TOGETHER * lanes), -(-TOGETHER * block_bytes // 64)
    spread = make_shuffle([lane // lanes for lane in range(TOGETHER * lanes)])

    @inlined
    def dot(codes: Any, blocks: Any, x: Any, x_scales: Any, x_sums: Any, scales: Any, lows: Any) -> Any:
        total, low_total, like = zeros(0.0), f32x4(0.0), f32x4(0.0)
        fours, rest = blocks // TOGETHER, blocks % TOGETHER
        for four in range(fours):
            stored = codes + TOGETHER * block_bytes * four
            for line in range(lines):
                prefetch_line(stored + AHEAD + 64 * line)
            units = load(like, scales, four) * load(like, x_scales, four)
            low_total = fused(load(like, lows, four), load(like, x_sums, four), low_total)
            total = fused(to_f32(dot_four(stored, x + NUMBERS_BYTES * four)), spread(units), total)
        if rest > 0:
            stored, numbers = codes + TOGETHER * block_bytes * fours, x + NUMBERS_BYTES * fours
            units = load(like, scales, fours) * load(like, x_scales, fours)
            own_lows, own_sums = load(like, lows, fours), load(like, x_sums, fours)
            if rest == 1:
                units, own_lows, own_sums = FIRST(units), FIRST(own_lows), FIRST(own_sums)
                sums = dot_first(stored, numbers)
            elif rest == 2:
                units, own_lows, own_sums = FIRST_TWO(units), FIRST_TWO(own_lows), FIRST_TWO(own_sums)
                sums = dot_two(stored, numbers)
            else:
                units, own_lows, own_sums = FIRST_THREE(units), FIRST_THREE(own_lows), FIRST_THREE(own_sums)
                sums = dot_two(stored, numbers) + dot_third(stored, numbers)
            low_total = fused(own_lows, own_sums, low_total)
            total = fused(to_f32(sums), spread(units), total)
        return lane_sum(total) + lane_sum(low_total)

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
                take_scales(job + 8 * SCALES, block, block + blocks * (count - 1) + length, scales, lows, work)
                for own in range(count):
                    stored = number(job, 0) + row_bytes * (row + own) + block_bytes * start
                    own_scales, own_lows = scales + 4 * blocks * own, lows + 4 * blocks * own
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
