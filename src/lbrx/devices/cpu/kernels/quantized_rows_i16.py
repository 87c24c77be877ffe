"""Rows of quantized blocks as i16 codes with a scale, and a value to take off, for every 32 or 16 of them.

``take`` functions decode elements ``first`` to ``stop`` - 1 (whole blocks) of some rows, whose bytes lie one row after
the other. Codes of four rows lie together: 32 of the first, 32 of the second, and so on, then the next 32 of the first.
Scales and lows go to rows of SCALE_ROW_BYTES.
"""

from __future__ import annotations

from typing import Any

from lbrx.devices.cpu.simd.elements import load_f16
from lbrx.devices.cpu.simd.i16 import (
    WIDEN_SIX_BITS,
    widen_bytes,
    widen_high,
    widen_high_less_8,
    widen_low,
    widen_low_less_8,
)
from lbrx.devices.cpu.simd.instruction import inlined, jit
from lbrx.devices.cpu.simd.int_dot import six_bit_minimums, six_bit_scales
from lbrx.devices.cpu.simd.memory import poke_f32
from lbrx.devices.cpu.simd.vectors import f32x16, load_i8, store, to_f32

STEP = 512  # elements of a row that are decoded at a time
CODE_ROW_BYTES = 2 * STEP
SCALE_ROW_BYTES = 4 * STEP // 16
SIX_0, SIX_1, SIX_2, SIX_3 = WIDEN_SIX_BITS


def _make_take(block_elements: int, block_bytes: int, widen: Any) -> Any:
    """A ``take`` function. ``widen(stored, out, scales, lows, block)`` decodes a block of a row."""

    @jit
    def take(blocks: Any, rows: Any, columns: Any, first: Any, stop: Any, codes: Any, scales: Any, lows: Any) -> None:
        for row in range(rows):
            stored = blocks + block_bytes * (columns // block_elements * row + first // block_elements)
            out = codes + 4 * CODE_ROW_BYTES * (row // 4) + 64 * (row % 4)
            own_scales, own_lows = scales + SCALE_ROW_BYTES * row, lows + SCALE_ROW_BYTES * row
            for block in range((stop - first) // block_elements):
                widen(stored, out, own_scales, own_lows, block)
                stored += block_bytes
                out += 8 * block_elements

    return take


@inlined
def _widen_q4_0(stored: Any, out: Any, scales: Any, _lows: Any, block: Any) -> None:
    poke_f32(scales, block, load_f16(stored, 0))
    widen_low_less_8(stored + 2, out)
    widen_high_less_8(stored + 2, out + 32)


@inlined
def _widen_q8_0(stored: Any, out: Any, scales: Any, _lows: Any, block: Any) -> None:
    poke_f32(scales, block, load_f16(stored, 0))
    widen_bytes(stored + 2, out)
    widen_bytes(stored + 18, out + 32)


@inlined
def _widen_q4_k(stored: Any, out: Any, scales: Any, lows: Any, block: Any) -> None:
    store(scales, block, six_bit_scales(stored + 4) * load_f16(stored, 0))
    store(lows, block, six_bit_minimums(stored + 4) * load_f16(stored, 1))
    for quarter in range(4):
        packed, target = stored + 16 + 32 * quarter, out + 512 * quarter
        widen_low(packed, target)
        widen_low(packed + 16, target + 32)
        widen_high(packed, target + 256)
        widen_high(packed + 16, target + 288)


@inlined
def _widen_q6_k(stored: Any, out: Any, scales: Any, _lows: Any, block: Any) -> None:
    levels = to_f32(load_i8(f32x16(0.0), stored + 192))
    store(scales, block, levels * load_f16(stored + 208, 0))
    for quarter in range(4):  # 16 bytes of low and of high bits: 16 codes of each of four rows of 32
        half, piece = quarter // 2, 16 * (quarter % 2)
        low, high = stored + 64 * half + piece, stored + 128 + 32 * half + piece
        target = out + 1024 * half + 2 * piece
        SIX_0(low, high, target)
        SIX_1(low + 32, high, target + 256)
        SIX_2(low, high, target + 512)
        SIX_3(low + 32, high, target + 768)


take_q4_0, take_q8_0 = _make_take(32, 18, _widen_q4_0), _make_take(32, 34, _widen_q8_0)
take_q4_k, take_q6_k = _make_take(256, 144, _widen_q4_k), _make_take(256, 210, _widen_q6_k)
