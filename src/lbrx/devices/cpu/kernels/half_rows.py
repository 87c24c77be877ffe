"""Half types to f32, row by row."""

from __future__ import annotations

from lbrx.devices.cpu.simd.elements import load_bf16 as load_one_bf16
from lbrx.devices.cpu.simd.elements import load_f16 as load_one_f16
from lbrx.devices.cpu.simd.elements import store_f32
from lbrx.devices.cpu.simd.f32 import load_bf16, load_f16
from lbrx.devices.cpu.simd.vectors import f32x16, store


def f16(source: int, source_row_bytes: int, target: int, rows: int, columns: int) -> None:
    like = f32x16(0.0)
    for row in range(rows):
        values, out = source + source_row_bytes * row, target + 4 * columns * row
        for i in range(columns // 16):
            store(out, i, load_f16(like, values, i))
        for i in range(columns // 16 * 16, columns):
            store_f32(out, i, load_one_f16(values, i))


def bf16(source: int, source_row_bytes: int, target: int, rows: int, columns: int) -> None:
    like = f32x16(0.0)
    for row in range(rows):
        values, out = source + source_row_bytes * row, target + 4 * columns * row
        for i in range(columns // 16):
            store(out, i, load_bf16(like, values, i))
        for i in range(columns // 16 * 16, columns):
            store_f32(out, i, load_one_bf16(values, i))
