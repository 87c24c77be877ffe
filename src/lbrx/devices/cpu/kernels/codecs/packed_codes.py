"""Codes of matrices, packed along rows or across them, as the values that a table gives them.

A line is what codes are packed along: a row (`along_rows`) or a column (`across_rows`). Its codes are a stream of bits,
lowest first, in words of 32 bits that are ``word_step`` bytes apart; lines are ``line_step`` bytes apart. Rows are
counted through all matrices of a stack, ``matrix_bytes`` apart.
"""

from __future__ import annotations

from typing import Any

from lbrx.devices.cpu.simd.elements import load_byte, load_f32, load_i32, store_f32
from lbrx.devices.cpu.simd.instruction import jit

ROWS, COLUMNS = 16, 16  # of a tile: a cache line of words or of values
WORD_BITS, WORD_BYTES = 32, 4
HIGH_FIRST, EVEN_FIRST = 1, 2  # orders of codes: the high half of a byte first; AWQ's, the even ones of eight first


@jit
def _place(number: Any, order: Any) -> Any:
    """The position of a code in the stream."""
    if order == HIGH_FIRST:
        return number ^ 1
    if order == EVEN_FIRST:
        return (number & -8) | ((number & 7) >> 1) | ((number & 1) << 2)
    return number


@jit
def _byte(line: Any, index: Any, word_step: Any) -> Any:
    return int(load_byte(line, (index // WORD_BYTES) * word_step + index % WORD_BYTES))


@jit
def _code(line: Any, number: Any, bits: Any, word_step: Any) -> Any:
    bit = number * bits
    code = _byte(line, bit // 8, word_step) >> (bit % 8)
    if bit % 8 + bits > 8:
        code |= _byte(line, bit // 8 + 1, word_step) << (8 - bit % 8)
    return code & ((1 << bits) - 1)


@jit
def _whole_words(line: Any, out: Any, table: Any, word: Any, bits: Any, word_step: Any) -> Any:
    codes = load_i32(line + word * word_step, 0)
    count = WORD_BITS // bits
    for lane in range(count):
        code = (codes >> (bits * lane)) & ((1 << bits) - 1)
        store_f32(out, word * count + lane, load_f32(table, code))


def along_rows(
    values: int,
    first: int,
    count: int,
    codes: int,
    rows: int,
    columns: int,
    bits: int,
    order: int,
    matrix_bytes: int,
    line_step: int,
    word_step: int,
    table: int,
) -> None:
    words = columns * bits // WORD_BITS if order == 0 and WORD_BITS % bits == 0 else 0
    for top in range(0, count, ROWS):
        stop = min(top + ROWS, count)
        for word in range(words):
            for row in range(top, stop):
                matrix, own = (first + row) // rows, (first + row) % rows
                line = codes + matrix * matrix_bytes + own * line_step
                out = values + 4 * row * columns
                if bits == 4:
                    _whole_words(line, out, table, word, 4, word_step)
                elif bits == 8:
                    _whole_words(line, out, table, word, 8, word_step)
                else:
                    _whole_words(line, out, table, word, bits, word_step)
        for row in range(top, stop):
            matrix, own = (first + row) // rows, (first + row) % rows
            line = codes + matrix * matrix_bytes + own * line_step
            out = values + 4 * row * columns
            for column in range(words * (WORD_BITS // bits), columns):
                code = _code(line, _place(column, order), bits, word_step)
                store_f32(out, column, load_f32(table, code))


def across_rows(
    values: int,
    first: int,
    count: int,
    codes: int,
    rows: int,
    columns: int,
    bits: int,
    order: int,
    matrix_bytes: int,
    line_step: int,
    word_step: int,
    table: int,
) -> None:
    for top in range(0, count, ROWS):
        for left in range(0, columns, COLUMNS):
            for row in range(top, min(top + ROWS, count)):
                matrix, own = (first + row) // rows, (first + row) % rows
                number = _place(own, order)
                lines = codes + matrix * matrix_bytes
                out = values + 4 * row * columns
                for column in range(left, min(left + COLUMNS, columns)):
                    code = _code(lines + column * line_step, number, bits, word_step)
                    store_f32(out, column, load_f32(table, code))


def rows_in_lanes(
    values: int, first: int, count: int, codes: int, rows: int, columns: int, bits: int, table: int
) -> None:
    """Byte number i of a column has the codes of rows i, i + n, i + 2n and so on; there are n bytes."""
    lines = rows * bits // 8
    mask = (1 << bits) - 1
    for row in range(count):
        own = first + row
        line, shift = codes + own % lines * columns, own // lines * bits
        out = values + 4 * row * columns
        for column in range(columns):
            store_f32(out, column, load_f32(table, (int(load_byte(line, column)) >> shift) & mask))
