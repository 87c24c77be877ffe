"""Rows of quantized blocks times a few vectors, as sums of products of integers.

The vectors are coded first: see `coded_vectors`. Codes of both sides are multiplied and added exactly; scales come in
f32. ``out`` is laid out as in `gemv_float`. There is a function for each codec and number of bits of the vectors, made
from the description of the codec in `groups`.

Sums are made of the same parts on every processor, so that results are equal.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.kernels.coded_names import parse_coded_name
from lbrx.devices.cpu.kernels.coded_vectors import GROUP_CODE_BYTES, GROUP_SCALE_BYTES
from lbrx.devices.cpu.kernels.groups.group import MOST_GROUP_BYTES, Group, make_dot, make_spread
from lbrx.devices.cpu.kernels.groups.table import GROUPS
from lbrx.devices.cpu.simd.elements import store_f32
from lbrx.devices.cpu.simd.f32 import fused
from lbrx.devices.cpu.simd.instruction import inlined
from lbrx.devices.cpu.simd.memory import copied_bytes, make_prefetch, stack_bytes
from lbrx.devices.cpu.simd.shuffles import make_shuffle
from lbrx.devices.cpu.simd.vectors import f32x8, f32x16, first_lanes, lane_sum, load, select, to_f32

AHEAD = 4096  # bytes
ZERO = np.float32(0.0)
pairs = make_shuffle([lane // 2 for lane in range(16)])
"""Each of eight lanes twice."""
low_lanes, high_lanes = make_shuffle(range(8)), make_shuffle(range(8, 16))


def _make_steps(group: Group, bits: int) -> Any:
    """The sums of a group, added to two totals in turn: those of all steps, or as many as some blocks need."""
    dots = [make_dot(group, step, bits) for step in group.steps]
    spreads = [make_spread(group, step) for step in group.steps]
    if len(dots) == 2:
        dot_0, dot_1 = dots
        spread_0, spread_1 = spreads

        @inlined
        def two_steps(stored: Any, x: Any, units: Any, blocks: Any, even: Any, odd: Any) -> Any:
            even = fused(to_f32(dot_0(stored, x)), spread_0(units), even)
            if blocks > 4:
                odd = fused(to_f32(dot_1(stored, x + 256)), spread_1(units), odd)
            return even, odd

        return two_steps
    step_0, step_1, step_2, step_3 = dots
    part_0, part_1, part_2, part_3 = spreads

    @inlined
    def four_steps(stored: Any, x: Any, units: Any, blocks: Any, even: Any, odd: Any) -> Any:
        even = fused(to_f32(step_0(stored, x)), part_0(units), even)
        if blocks > 2:
            odd = fused(to_f32(step_1(stored, x + 128)), part_1(units), odd)
        if blocks > 4:
            even = fused(to_f32(step_2(stored, x + 256)), part_2(units), even)
        if blocks > 6:
            odd = fused(to_f32(step_3(stored, x + 384)), part_3(units), odd)
        return even, odd

    return four_steps


@inlined
def added_halves(value: Any) -> Any:
    """Sixteen lanes as eight."""
    return low_lanes(value) + high_lanes(value)


def _make_gemv(group: Group, bits: int) -> Any:
    steps, scales, lows = _make_steps(group, bits), group.scales, group.lows
    nbytes, block_elements, block_bytes = group.nbytes, group.block_elements, group.block_bytes
    prefetch = make_prefetch(nbytes // 64 + 1)
    offset = np.float32(group.offset)
    has_lows, has_offset, is_fine = lows is not None, group.offset > 0, group.scaled == 16
    sum_bytes = GROUP_SCALE_BYTES * 32 // group.scaled

    @inlined
    def vector_scales(x_scales: Any) -> Any:
        return pairs(load(f32x8(0.0), x_scales, 0)) if is_fine else load(f32x8(0.0), x_scales, 0)

    @inlined
    def zeros() -> Any:
        return f32x16(0.0) if is_fine else f32x8(0.0)

    @inlined
    def low_sums(stored: Any, own_scales: Any, x_sums: Any, total: Any) -> Any:
        if has_lows:
            return fused(lows(stored), load(total, x_sums, 0), total)
        if has_offset:
            return fused(own_scales * offset, load(total, x_sums, 0), total)
        return total

    @inlined
    def dot(stored: Any, tail: Any, groups: Any, rest: Any, x: Any, x_scales: Any, x_sums: Any) -> Any:
        even, odd, low = f32x16(0.0), f32x16(0.0), zeros()
        for number in range(groups):
            first = stored + nbytes * number
            prefetch(first + AHEAD)
            own_scales = scales(first)
            units = own_scales * vector_scales(x_scales + GROUP_SCALE_BYTES * number)
            low = low_sums(first, own_scales, x_sums + sum_bytes * number, low)
            even, odd = steps(first, x + GROUP_CODE_BYTES * number, units, 8, even, odd)
        if block_elements < 256 and rest > 0:
            is_own = first_lanes(low, rest * (1 + is_fine))
            own_scales = select(is_own, scales(tail), zeros())
            units = own_scales * vector_scales(x_scales + GROUP_SCALE_BYTES * groups)
            more = low_sums(tail, own_scales, x_sums + sum_bytes * groups, low)
            low = select(is_own, more, low)
            even, odd = steps(tail, x + GROUP_CODE_BYTES * groups, units, rest, even, odd)
        return lane_sum(even + odd - low) if is_fine else lane_sum(added_halves(even + odd) - low)

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
        whole, rest = columns // 256, columns % 256 // 32
        padded = (columns + 255) // 256
        row_bytes = columns // block_elements * block_bytes
        buffer = stack_bytes(MOST_GROUP_BYTES)
        for row in range(rows):
            stored = blocks + row_bytes * row
            tail = stored + nbytes * whole
            if block_elements < 256 and row == rows - 1:  # what lies behind the last row may not be readable
                tail = copied_bytes(tail, row_bytes - nbytes * whole, buffer)
            for vector in range(vectors):
                x, x_scales = codes + GROUP_CODE_BYTES * padded * vector, scales + GROUP_SCALE_BYTES * padded * vector
                x_sums = sums + sum_bytes * padded * vector
                store_f32(out, out_columns * vector + row, dot(stored, tail, whole, rest, x, x_scales, x_sums))

    return gemv


def __getattr__(name: str) -> Any:
    """The function of a codec, made when it is compiled."""
    codec_name, bits = parse_coded_name(name)
    if codec_name not in GROUPS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _make_gemv(GROUPS[codec_name], bits)
