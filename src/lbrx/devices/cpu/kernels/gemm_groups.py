"""Rows of codes whose scales and offsets are stored apart times many vectors, as sums of products of i16.

There is a function for each kind of codes. Jobs are those of `gemm_i16`, and behind them the numbers of `take_scales`.
"""

from __future__ import annotations

from typing import Any

from lbrx.devices.cpu.kernels.gemm_i16 import make_gemm
from lbrx.devices.cpu.kernels.group_scales import take_scales
from lbrx.devices.cpu.kernels.quantized_rows_i16 import CODE_ROW_BYTES, SCALE_ROW_BYTES, STEP
from lbrx.devices.cpu.simd.bit_stream import BIT_WIDTHS, LOAD_16_CODES, LOAD_16_INTEGERS
from lbrx.devices.cpu.simd.elements import load_i64 as number
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.memory import stack_bytes
from lbrx.devices.cpu.simd.vectors import f32x8, i32x16, load, store, store_i16

SCALES = 10  # of the numbers of a job
WORK_BYTES = 4 * (STEP // 32 + 16)


def _make_take(bits: int, load_codes: Any, offset: int) -> Any:
    """A ``take`` function. ``offset`` is taken off every code."""

    @jit
    def take(
        job: Any, blocks: Any, rows: Any, columns: Any, first: Any, stop: Any, codes: Any, scales: Any, lows: Any
    ) -> None:
        work = stack_bytes(WORK_BYTES)
        row_bytes, count = columns * bits // 8, (stop - first) // 32
        first_row = (blocks - number(job, 0)) // row_bytes
        for row in range(rows):
            stored = blocks + row_bytes * row + first * bits // 8
            out = codes + 4 * CODE_ROW_BYTES * (row // 4) + 64 * (row % 4)
            for block in range(count):
                for half in range(2):
                    own = load_codes(stored + 4 * bits * block + 2 * bits * half) - i32x16(offset)
                    store_i16(out + 256 * block + 32 * half, own)
            own_scales, own_lows = scales + SCALE_ROW_BYTES * row, lows + SCALE_ROW_BYTES * row
            start = columns // 32 * (first_row + row) + first // 32
            take_scales(job + 8 * SCALES, start, start + count, own_scales, own_lows, work)
            for at in range((count + 7) // 8):  # they are taken off
                store(own_lows, at, f32x8(0.0) - load(f32x8(0.0), own_lows, at))

    return take


def _make_gemm(bits: int, load_codes: Any, offset: int = 0) -> Any:
    return make_gemm(_make_take(bits, load_codes, offset), 32, has_lows=True)


affine_2, affine_3, affine_4, affine_5, affine_6, affine_8 = (
    _make_gemm(bits, LOAD_16_CODES[bits], 128 if bits == 8 else 0) for bits in BIT_WIDTHS
)
integers_2, integers_4, integers_8 = (
    _make_gemm(bits, LOAD_16_INTEGERS[bits], 0 if bits == 8 else -(1 << (bits - 1))) for bits in (2, 4, 8)
)
"""Codes of 2 and 4 bits are made unsigned, as `gemv_groups` has them."""
