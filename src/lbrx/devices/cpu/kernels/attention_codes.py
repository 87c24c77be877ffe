"""Queries, keys and values in bf16 as i16 codes for `attention_i16`, with the bits of the largest magnitude of all."""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.simd.elements import load_i16
from lbrx.devices.cpu.simd.elements import load_i64 as number
from lbrx.devices.cpu.simd.elements import store_i16 as store_one_i16
from lbrx.devices.cpu.simd.f32 import ROUNDER, fused, load_bf16
from lbrx.devices.cpu.simd.i16 import bf16_values, largest_i16, largest_magnitude, transpose_eight
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.memory import poke_f32
from lbrx.devices.cpu.simd.scalars import f32_from_bits
from lbrx.devices.cpu.simd.vectors import bits_of, f32x16, f32x32, i16x16, select, splat, store, store_i16, to_i32

BLOCK, PANEL = 256, 16
FINE, COARSE = np.float32(8191.0), np.float32(4095.0)
ZERO, TINY = np.float32(0.0), np.float32(2.0**-100)
MOST_SIZE = 512
VALUE_FOUR_BYTES = 8 * BLOCK


@jit
def _factor(largest: Any, top: Any) -> Any:
    """What to multiply numbers with so that the largest becomes ``top``; tiny ones become zeros."""
    return ZERO if largest < TINY else top / largest


@jit
def _whole(row: Any, size: Any, padded: Any, buffer: Any) -> Any:
    """A row of bf16 in whole blocks of 32: where it lies, or copied with zeros at its end."""
    if size == padded:
        return row
    for block in range(padded // 32):
        store_i16(buffer + 64 * block, to_i32(f32x32(0.0)))
    for i in range(size):
        store_one_i16(buffer, i, load_i16(row, i))
    return buffer


@jit
def _nearest(values: Any, factor: Any) -> Any:
    """Values times a factor as the nearest whole numbers, in the low 16 bits of lanes."""
    return bits_of(fused(values, splat(values, factor), splat(values, ROUNDER)))


@jit
def _code_row(row: Any, padded: Any, top: Any, out: Any, block_stride: Any) -> Any:
    """A row of bf16 as i16, in blocks of 32 with a stride. Returns the bits of the largest magnitude."""
    highest_bits = i16x16(0)
    for i in range(padded // 16):
        highest_bits = largest_magnitude(row + 32 * i, highest_bits)
    largest = largest_i16(highest_bits)
    factor = _factor(f32_from_bits(largest << 16), top)
    for i in range(padded // 16):
        coded = _nearest(load_bf16(f32x16(0.0), row, i), factor)
        store_i16(out + block_stride * (i // 2) + 32 * (i % 2), coded)
    return largest


@jit
def _row_scale(largest: Any, top: Any) -> Any:
    value = f32_from_bits(largest << 16)
    return ZERO if value < TINY else value / top


@jit
def code_queries(job: Any, rows: Any, buffer: Any) -> Any:
    """Queries in panels; those that are missing are zeros. Returns the bits of the largest magnitude."""
    group, size, padded, scale = number(job, 3), number(job, 4), number(job, 5), f32_from_bits(number(job, 6))
    codes = buffer + 2 * MOST_SIZE
    highest = 0
    for first in range(0, (rows + PANEL - 1) // PANEL * PANEL, 8):
        for row in range(first, first + 8):
            known = min(row, rows - 1)
            address = number(job, 0) + number(job, 1) * (known % group) + number(job, 2) * (known // group)
            largest = _code_row(_whole(address, size, padded, buffer), padded, FINE, codes + 2 * padded * (row % 8), 64)
            highest = max(highest, largest)
            poke_f32(number(job, 8), row, _row_scale(largest, FINE) * scale)
        out = number(job, 7) + 32 * padded * (first // PANEL) + 4 * (first % PANEL)
        for half in range(padded // 16):
            target = out + 512 * half
            transpose_eight(codes + 32 * half, 2 * padded, target, target + 256, 64)
    return highest


@jit
def code_keys(keys: Any, stride: Any, count: Any, size: Any, padded: Any, codes: Any, scales: Any, buffer: Any) -> Any:
    """Four keys together, 32 elements of each in turn; of those that are missing, what was there remains.

    Returns the bits of the largest magnitude.
    """
    highest = 0
    for key in range(count):
        out = codes + 8 * padded * (key // 4) + 64 * (key % 4)
        largest = _code_row(_whole(keys + stride * key, size, padded, buffer), padded, COARSE, out, 256)
        highest = max(highest, largest)
        poke_f32(scales, key, _row_scale(largest, COARSE))
    for key in range(count, (count + 3) // 4 * 4):
        poke_f32(scales, key, ZERO)
    return highest


@jit
def _sixteen(row: Any, width: Any, buffer: Any) -> Any:
    """Sixteen bf16 where they lie, or fewer copied with zeros at their end."""
    if width == 16:
        return row
    for i in range(16):
        store_one_i16(buffer, i, load_i16(row, i) if i < width else np.int16(0))
    return buffer


@jit
def _value(values: Any, stride: Any, key: Any, count: Any, panel: Any, width: Any, buffer: Any) -> Any:
    """Sixteen elements of a value, zeros where there are none."""
    if key >= count:
        return f32x16(0.0)
    return load_bf16(f32x16(0.0), _sixteen(values + stride * key + 32 * panel, width, buffer), 0)


@jit
def _code_pair(even: Any, odd: Any, factors: Any) -> Any:
    """Elements of two keys as i16, side by side."""
    low = bits_of(fused(even, factors, splat(even, ROUNDER))) & np.int32(0xFFFF)
    return low | (bits_of(fused(odd, factors, splat(odd, ROUNDER))) << 16)


@jit
def code_values(values: Any, stride: Any, count: Any, size: Any, codes: Any, scales: Any, buffer: Any) -> Any:
    """Four elements together, 32 keys of each in turn; keys that are missing are zeros.

    Returns the bits of the largest magnitude.
    """
    like = f32x16(0.0)
    turned = buffer + 64
    highest = 0
    for panel in range((size + 15) // 16):
        width = min(16, size - 16 * panel)
        highest_bits = i16x16(0)
        for key in range(count):
            highest_bits = largest_magnitude(_sixteen(values + stride * key + 32 * panel, width, buffer), highest_bits)
        highest = max(highest, largest_i16(highest_bits))
        largest = bf16_values(like, highest_bits)
        is_tiny = largest < TINY
        factors = select(is_tiny, like, COARSE / largest)
        store(scales, panel, select(is_tiny, like, largest / COARSE))
        for key in range(0, (count + 31) // 32 * 32, 16):
            if key + 16 <= count and width == 16:
                for pair in range(8):
                    row = values + stride * (key + 2 * pair) + 32 * panel
                    even, odd = load_bf16(like, row, 0), load_bf16(like, row + stride, 0)
                    store(turned, pair, _code_pair(even, odd, factors))
            else:
                for pair in range(8):
                    even = _value(values, stride, key + 2 * pair, count, panel, width, buffer)
                    odd = _value(values, stride, key + 2 * pair + 1, count, panel, width, buffer)
                    store(turned, pair, _code_pair(even, odd, factors))
            out = codes + 4 * VALUE_FOUR_BYTES * panel + 256 * (key // 32) + 2 * (key % 32)
            transpose_eight(turned, 64, out, out + VALUE_FOUR_BYTES, 64)
            transpose_eight(turned + 32, 64, out + 2 * VALUE_FOUR_BYTES, out + 3 * VALUE_FOUR_BYTES, 64)
    return highest
