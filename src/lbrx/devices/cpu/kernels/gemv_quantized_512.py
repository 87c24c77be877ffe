"""Rows of Q4_0 and Q4_K times a few vectors, as in `block_products`, for registers of 512 bits.

Sums are made of other parts than there: the last bits of a result depend on which of the two forms a processor takes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.simd.elements import load_f16, load_f32, store_f32
from lbrx.devices.cpu.simd.f32 import fused
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.int_dot import dot_one_of_four_blocks
from lbrx.devices.cpu.simd.int_dot_512 import (
    FOUR_LANES,
    ONE_OF_FOUR,
    dot_four_blocks,
    dot_high_halves_of_64,
    dot_low_halves_of_64,
    halves_twice,
    minimums,
    ordered_scales,
    scales_of_eight_blocks,
)
from lbrx.devices.cpu.simd.memory import prefetch_3_lines_to_l2
from lbrx.devices.cpu.simd.vectors import f32x8, f32x16, lane_sum, load, splat, to_f32

AHEAD = 8192  # bytes
EIGHT = np.float32(8.0)
FIRST_FOUR, LAST_FOUR = FOUR_LANES
BLOCKS_0_2, BLOCKS_1_3, BLOCKS_4_6, BLOCKS_5_7 = ONE_OF_FOUR


@jit
def _rest_of_q4_0(stored: Any, x: Any, x_scales: Any, x_sums: Any, count: Any) -> Any:
    """The blocks behind the last whole eight."""
    total, eighths = f32x8(0.0), np.float32(0.0)
    for block in range(count // 8 * 8, count):
        own_scale = load_f16(stored + 18 * block, 0)
        eighths += own_scale * load_f32(x_sums, block)
        numbers = x + 256 * (block // 4) + 16 * (block % 4)
        unit = own_scale * load_f32(x_scales, block)
        total = total + to_f32(dot_one_of_four_blocks(stored + 18 * block + 2, 0, numbers)) * unit
    return lane_sum(total) - eighths * EIGHT


@jit
def q4_0(
    blocks: Any, rows: Any, columns: Any, codes: Any, scales: Any, sums: Any, vectors: Any, out: Any, out_columns: Any
) -> None:
    count = columns // 32
    for row in range(rows):
        stored = blocks + 18 * count * row
        for vector in range(vectors):
            x = codes + (count + 3) // 4 * 256 * vector
            x_scales, x_sums = scales + 4 * count * vector, sums + 4 * count * vector
            even, odd, eighths = f32x16(0.0), f32x16(0.0), f32x8(0.0)
            for group in range(count // 8):
                first, numbers = stored + 144 * group, x + 512 * group
                prefetch_3_lines_to_l2(first + AHEAD)
                own_scales = scales_of_eight_blocks(first)
                units = own_scales * load(eighths, x_scales, group)
                eighths = fused(own_scales, load(eighths, x_sums, group), eighths)
                even = fused(to_f32(dot_four_blocks(first, numbers)), FIRST_FOUR(units), even)
                odd = fused(to_f32(dot_four_blocks(first + 72, numbers + 256)), LAST_FOUR(units), odd)
            total = lane_sum(even + odd) - lane_sum(eighths) * EIGHT
            store_f32(out, out_columns * vector + row, total + _rest_of_q4_0(stored, x, x_scales, x_sums, count))


@jit
def q4_k(
    blocks: Any, rows: Any, columns: Any, codes: Any, scales: Any, sums: Any, vectors: Any, out: Any, out_columns: Any
) -> None:
    count = columns // 256
    for row in range(rows):
        for vector in range(vectors):
            even, odd, lows = f32x16(0.0), f32x16(0.0), f32x8(0.0)
            for block in range(count):
                stored, place = blocks + 144 * (count * row + block), count * vector + block
                prefetch_3_lines_to_l2(stored + AHEAD)
                lows = fused(minimums(stored + 4) * load(lows, sums, place), splat(lows, load_f16(stored, 1)), lows)
                units = halves_twice(ordered_scales(stored + 4) * load(lows, scales, place) * load_f16(stored, 0))
                at, x = stored + 16, codes + 512 * place
                even = fused(to_f32(dot_low_halves_of_64(at, x)), BLOCKS_0_2(units), even)
                odd = fused(to_f32(dot_high_halves_of_64(at, x)), BLOCKS_1_3(units), odd)
                even = fused(to_f32(dot_low_halves_of_64(at + 64, x + 256)), BLOCKS_4_6(units), even)
                odd = fused(to_f32(dot_high_halves_of_64(at + 64, x + 256)), BLOCKS_5_7(units), odd)
            store_f32(out, out_columns * vector + row, lane_sum(even + odd) - lane_sum(lows))
