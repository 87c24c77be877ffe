"""Numbers of groups of elements, such as scales, repeated for each element of a matrix.

The number of row r and column c is element ``r // row_size * row_step + group * column_step`` of a matrix of numbers,
where the group is ``c // column_size`` (`blocks`) or is looked up (`looked_up`). Rows are counted through all matrices
of a stack, which have ``matrix_step`` numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.simd.elements import (
    load_bf16,
    load_byte,
    load_f8_e4m3,
    load_f16,
    load_f32,
    load_i32,
    store_f32,
)
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.scalars import f32_from_bits

F32, F16, BF16, F8_E4M3, U8, I8, E8M0 = range(7)


@jit
def _e8m0(exponent: Any) -> Any:
    """2^(e - 127); 255 is NaN."""
    if exponent == 0:
        return f32_from_bits(0x00400000)
    return f32_from_bits(0x7FC00000 if exponent == 255 else exponent << 23)


@jit
def _number(numbers: Any, index: Any, number_type: Any) -> Any:
    if number_type == F32:
        return load_f32(numbers, index)
    if number_type == F16:
        return load_f16(numbers, index)
    if number_type == BF16:
        return load_bf16(numbers, index)
    if number_type == F8_E4M3:
        return load_f8_e4m3(numbers, index)
    byte = int(load_byte(numbers, index))
    if number_type == U8:
        return np.float32(byte)
    if number_type == I8:
        return np.float32(byte - 256 if byte > 127 else byte)
    return _e8m0(byte)


def blocks(
    values: int,
    first: int,
    count: int,
    numbers: int,
    number_type: int,
    rows: int,
    columns: int,
    row_size: int,
    column_size: int,
    matrix_step: int,
    row_step: int,
    column_step: int,
) -> None:
    for row in range(count):
        matrix, own = (first + row) // rows, (first + row) % rows
        start = matrix * matrix_step + own // row_size * row_step
        out = values + 4 * row * columns
        for group in range(-(-columns // column_size)):
            number = _number(numbers, start + group * column_step, number_type)
            for column in range(group * column_size, min((group + 1) * column_size, columns)):
                store_f32(out, column, number)


def looked_up(
    values: int,
    first: int,
    count: int,
    numbers: int,
    groups: int,
    number_type: int,
    columns: int,
    row_step: int,
    column_step: int,
) -> None:
    for row in range(count):
        out = values + 4 * row * columns
        for column in range(columns):
            index = (first + row) * row_step + load_i32(groups, column) * column_step
            store_f32(out, column, _number(numbers, index, number_type))
