"""Rows of f32, f16 or bf16 times a few vectors: 32 lanes side by side, added as a tree at the end of a row.

``out`` has a row of ``out_columns`` numbers for each vector; a kernel fills ``rows`` of its columns.
"""

from __future__ import annotations

from typing import Any

from lbrx.devices.cpu.simd.elements import load_bf16 as load_one_bf16
from lbrx.devices.cpu.simd.elements import load_f16 as load_one_f16
from lbrx.devices.cpu.simd.elements import load_f32, store_f32
from lbrx.devices.cpu.simd.f32 import load_bf16, load_f16
from lbrx.devices.cpu.simd.vectors import f32x32, lane_sum, load


def _make_gemv(load_weights: Any, load_weight: Any) -> Any:
    def gemv(
        weights: int, row_bytes: int, rows: int, columns: int, x: int, vectors: int, out: int, out_columns: int
    ) -> None:
        for row in range(rows):
            values = weights + row_bytes * row
            for vector in range(vectors):
                numbers = x + 4 * columns * vector
                sums = f32x32(0.0)
                for i in range(columns // 32):
                    sums = sums + load_weights(sums, values, i) * load(sums, numbers, i)
                total = lane_sum(sums)
                for i in range(columns // 32 * 32, columns):
                    total += load_weight(values, i) * load_f32(numbers, i)
                store_f32(out, out_columns * vector + row, total)

    return gemv


f32, f16, bf16 = _make_gemv(load, load_f32), _make_gemv(load_f16, load_one_f16), _make_gemv(load_bf16, load_one_bf16)
