"""A row of Q4_0 or Q4_K times a vector, as in `gemv_quantized`, for registers of 512 bits.

Sums are made of other parts than there: the last bits of a result depend on which of the two forms a processor takes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.simd.elements import load_f16, load_f32
from lbrx.devices.cpu.simd.f32 import fused
from lbrx.devices.cpu.simd.instruction import inlined, jit
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


@inlined
def dot_q4_0_512(stored: Any, columns: Any, x: Any, x_scales: Any, x_sums: Any) -> Any:
    count = columns // 32
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
    return total + _rest_of_q4_0(stored, x, x_scales, x_sums, count)


@inlined
def dot_q4_k_512(blocks: Any, columns: Any, codes: Any, x_scales: Any, x_sums: Any) -> Any:
    even, odd, lows = f32x16(0.0), f32x16(0.0), f32x8(0.0)
    for block in range(columns // 256):
        stored, x = blocks + 144 * block, codes + 512 * block
        prefetch_3_lines_to_l2(stored + AHEAD)
        lows = fused(minimums(stored + 4) * load(lows, x_sums, block), splat(lows, load_f16(stored, 1)), lows)
        units = halves_twice(ordered_scales(stored + 4) * load(lows, x_scales, block) * load_f16(stored, 0))
        packed = stored + 16
        even = fused(to_f32(dot_low_halves_of_64(packed, x)), BLOCKS_0_2(units), even)
        odd = fused(to_f32(dot_high_halves_of_64(packed, x)), BLOCKS_1_3(units), odd)
        even = fused(to_f32(dot_low_halves_of_64(packed + 64, x + 256)), BLOCKS_4_6(units), even)
        odd = fused(to_f32(dot_high_halves_of_64(packed + 64, x + 256)), BLOCKS_5_7(units), odd)
    return lane_sum(even + odd) - lane_sum(lows)
