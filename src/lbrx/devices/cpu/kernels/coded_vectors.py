"""Vectors as codes of 16 or 8 bits in blocks of 32 numbers, each with a scale: the largest magnitude / a top code.

A vector of codes is whole groups of 256: behind the last block there are zeros. A group has 512 bytes of codes, laid
out in the order of a codec's `Group`, eight scales, and the sums of the numbers as coded: eight, or sixteen for codecs
with a scale for every 16 elements.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.kernels.coded_names import parse_coded_name
from lbrx.devices.cpu.kernels.groups.group import HALVES_OF_16, HALVES_OF_32, NATURAL, make_offsets
from lbrx.devices.cpu.simd.coded_dot import TOPS, make_store_numbers
from lbrx.devices.cpu.simd.elements import load_i64 as number
from lbrx.devices.cpu.simd.elements import store_f32
from lbrx.devices.cpu.simd.f32 import absolute, nearest_even
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.shuffles import first_half, second_half
from lbrx.devices.cpu.simd.vectors import f32x32, lane_max, lane_sum, load, to_i32

ZERO, TINY = np.float32(0.0), np.float32(2.0**-100)
WATCHED = 96  # bytes behind the beginning of a job
GROUP_CODE_BYTES, GROUP_SCALE_BYTES = 512, 32


def _make_coder(order: tuple[int, ...], per_block: int = 1, is_signed: bool = False, bits: int = 16) -> Any:
    """A coder for codecs with an order of pieces, and so many sums for every block.

    ``job`` is that of `gemv_tasks.coded_rows`, with the address of the vectors behind it; at WATCHED it gets an f32
    that is 0 if all numbers are finite. Blocks of tiny numbers become zeros.
    """
    offsets, store_numbers, top = make_offsets(order), make_store_numbers(is_signed, bits), TOPS[bits]

    @jit
    def code_block(values: Any, block: Any, codes: Any, scales: Any, sums: Any) -> None:
        largest = lane_max(absolute(values))
        is_tiny = largest < TINY
        coded = nearest_even(values * (ZERO if is_tiny else top / largest))
        scale = ZERO if is_tiny else largest / top
        store_numbers(codes + GROUP_CODE_BYTES * (block // 8), offsets() + 32 * (block % 8), to_i32(coded))
        store_f32(scales, block, scale)
        if per_block == 2:
            store_f32(sums, 2 * block, lane_sum(first_half(coded)) * scale)
            store_f32(sums, 2 * block + 1, lane_sum(second_half(coded)) * scale)
        else:
            store_f32(sums, block, lane_sum(coded) * scale)

    def coder(job: int) -> None:
        columns, codes, scales, sums, x = (
            number(job, 4),
            number(job, 5),
            number(job, 6),
            number(job, 7),
            number(job, 10),
        )
        blocks = columns // 32
        groups = (blocks + 7) // 8
        watched = ZERO
        for vector in range(number(job, 8)):
            for block in range(8 * groups):
                values = f32x32(0.0)
                if block < blocks:
                    values = load(values, x + 4 * columns * vector, block)
                code_block(values, block, codes, scales, sums)
                watched += lane_sum(values * ZERO)
            codes += GROUP_CODE_BYTES * groups
            scales += GROUP_SCALE_BYTES * groups
            sums += GROUP_SCALE_BYTES * per_block * groups
        store_f32(job + WATCHED, 0, watched)

    return coder


_CODERS: dict[str, tuple[tuple[int, ...], int, bool]] = {
    "in_order_by_16": (NATURAL, 2, False),
    "by_halves_of_32": (HALVES_OF_32, 1, False),
    "by_halves_of_16": (HALVES_OF_16, 2, False),
    "signed_in_order": (NATURAL, 1, True),
    "signed_by_halves_of_32": (HALVES_OF_32, 1, True),
    "signed_by_halves_of_16": (HALVES_OF_16, 2, True),
}


def __getattr__(name: str) -> Any:
    """A coder of `_CODERS` for so many bits, made when it is compiled."""
    coder_name, bits = parse_coded_name(name)
    if coder_name not in _CODERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _make_coder(*_CODERS[coder_name], bits)
