"""Rows of quantized blocks as i16 codes with a scale, and a value to take off, for every 32 or 16 of them.

``take`` functions decode elements ``first`` to ``stop`` - 1 (whole blocks) of some rows, whose bytes lie one row after
the other. Words of four rows lie together: 32 of the first, 32 of the second, and so on, then the next 32 of the first.
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
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.int_dot import six_bit_minimums, six_bit_scales
from lbrx.devices.cpu.simd.memory import poke_f32
from lbrx.devices.cpu.simd.vectors import f32x16, load_i8, store, to_f32

STEP = 512  # elements of a row that are decoded at a time
WORD_ROW_BYTES = 2 * STEP
SCALE_ROW_BYTES = 4 * STEP // 16
SIX_0, SIX_1, SIX_2, SIX_3 = WIDEN_SIX_BITS


@jit
def take_q4_0(blocks: Any, rows: Any, columns: Any, first: Any, stop: Any, words: Any, scales: Any, _lows: Any) -> None:
    for row in range(rows):
        stored = blocks + 18 * (columns // 32 * row + first // 32)
        out = words + 4 * WORD_ROW_BYTES * (row // 4) + 64 * (row % 4)
        for block in range((stop - first) // 32):
            poke_f32(scales + SCALE_ROW_BYTES * row, block, load_f16(stored, 0))
            widen_low_less_8(stored + 2, out)
            widen_high_less_8(stored + 2, out + 32)
            stored += 18
            out += 256


@jit
def take_q8_0(blocks: Any, rows: Any, columns: Any, first: Any, stop: Any, words: Any, scales: Any, _lows: Any) -> None:
    for row in range(rows):
        stored = blocks + 34 * (columns // 32 * row + first // 32)
        out = words + 4 * WORD_ROW_BYTES * (row // 4) + 64 * (row % 4)
        for block in range((stop - first) // 32):
            poke_f32(scales + SCALE_ROW_BYTES * row, block, load_f16(stored, 0))
            widen_bytes(stored + 2, out)
            widen_bytes(stored + 18, out + 32)
            stored += 34
            out += 256


@jit
def take_q4_k(blocks: Any, rows: Any, columns: Any, first: Any, stop: Any, words: Any, scales: Any, lows: Any) -> None:
    for row in range(rows):
        stored = blocks + 144 * (columns // 256 * row + first // 256)
        out = words + 4 * WORD_ROW_BYTES * (row // 4) + 64 * (row % 4)
        for block in range((stop - first) // 256):
            store(scales + SCALE_ROW_BYTES * row, block, six_bit_scales(stored + 4) * load_f16(stored, 0))
            store(lows + SCALE_ROW_BYTES * row, block, six_bit_minimums(stored + 4) * load_f16(stored, 1))
            for quarter in range(4):
                codes = stored + 16 + 32 * quarter
                widen_low(codes, out)
                widen_low(codes + 16, out + 32)
                widen_high(codes, out + 256)
                widen_high(codes + 16, out + 288)
                out += 512
            stored += 144


@jit
def take_q6_k(blocks: Any, rows: Any, columns: Any, first: Any, stop: Any, words: Any, scales: Any, _lows: Any) -> None:
    for row in range(rows):
        stored = blocks + 210 * (columns // 256 * row + first // 256)
        out = words + 4 * WORD_ROW_BYTES * (row // 4) + 64 * (row % 4)
        for block in range((stop - first) // 256):
            levels = to_f32(load_i8(f32x16(0.0), stored + 192))
            store(scales + SCALE_ROW_BYTES * row, block, levels * load_f16(stored + 208, 0))
            for quarter in range(4):  # 16 bytes of low and of high bits: 16 codes of each of four rows of 32
                half, piece = quarter // 2, 16 * (quarter % 2)
                low, high = stored + 64 * half + piece, stored + 128 + 32 * half + piece
                target = out + 1024 * half + 2 * piece
                SIX_0(low, high, target)
                SIX_1(low + 32, high, target + 256)
                SIX_2(low, high, target + 512)
                SIX_3(low + 32, high, target + 768)
            stored += 210
            out += 2048
