"""Half types to f32, row by row."""

from __future__ import annotations

from typing import Any

from lbrx.devices.cpu.simd.elements import load_bf16 as load_one_bf16
from lbrx.devices.cpu.simd.elements import load_f16 as load_one_f16
from lbrx.devices.cpu.simd.elements import store_f32
from lbrx.devices.cpu.simd.f32 import load_bf16, load_f16
from lbrx.devices.cpu.simd.vectors import f32x16, store


def _make_widen(load_vector: Any, load_one: Any) -> Any:
    def widen(source: int, source_row_bytes: int, target: int, rows: int, columns: int) -> None:
        like = f32x16(0.0)
        for row in range(rows):
            values, out = source + source_row_bytes * row, target + 4 * columns * row
            for i in range(columns // 16):
                store(out, i, load_vector(like, values, i))
            for i in range(columns // 16 * 16, columns):
                store_f32(out, i, load_one(values, i))

    return widen


f16, bf16 = _make_widen(load_f16, load_one_f16), _make_widen(load_bf16, load_one_bf16)
