"""Operations of a recorded step as tasks of a team: ``task(job, second, first, stop)`` does a part of the work.

``job`` is the address of int64 numbers: the function that does the work, a status that is set if it is not 0, the
addresses of the source and of the target, and then what each task says.
"""

from __future__ import annotations

from typing import Any

from lbrx.devices.cpu.simd.calls import make_call
from lbrx.devices.cpu.simd.elements import load_f32, store_bf16, store_f16, store_f32, store_i64
from lbrx.devices.cpu.simd.elements import load_i64 as number
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.memory import stack_bytes

call_one, call_three, call_four, call_five = make_call(3), make_call(5), make_call(6), make_call(7)
call_six, call_seven, call_eight = make_call(8), make_call(9), make_call(10)


@jit
def _check(job: Any, status: Any) -> None:
    if status != 0:
        store_i64(job, 1, status)


def code(job: int, coder: int, _first: int, _stop: int) -> None:
    """Code vectors for products with quantized rows; see `coded_vectors`."""
    scratch = stack_bytes(16)
    call_one(coder, (scratch, scratch + 8, job))


def rows_0(job: int, columns: int, first: int, stop: int) -> None:
    """Rows without further arguments."""
    scratch, at = stack_bytes(16), 4 * columns * first
    given = number(job, 2) + at, number(job, 3) + at, stop - first, columns
    _check(job, call_four(number(job, 0), (scratch, scratch + 8, *given)))


def rows_1(job: int, columns: int, first: int, stop: int) -> None:
    """Rows with one argument: a vector."""
    scratch, at = stack_bytes(16), 4 * columns * first
    given = number(job, 2) + at, number(job, 3) + at, stop - first, columns, number(job, 4)
    _check(job, call_five(number(job, 0), (scratch, scratch + 8, *given)))


def rows_2(job: int, columns: int, first: int, stop: int) -> None:
    """Rows with two arguments: a vector and a number."""
    scratch, at = stack_bytes(16), 4 * columns * first
    given = number(job, 2) + at, number(job, 3) + at, stop - first, columns, number(job, 4), number(job, 5)
    _check(job, call_six(number(job, 0), (scratch, scratch + 8, *given)))


def rows_3(job: int, columns: int, first: int, stop: int) -> None:
    """Rows with three arguments: two vectors and a number."""
    scratch, at = stack_bytes(16), 4 * columns * first
    given = number(job, 2) + at, number(job, 3) + at, stop - first, columns
    more = number(job, 4), number(job, 5), number(job, 6)
    _check(job, call_seven(number(job, 0), (scratch, scratch + 8, *given, *more)))


def elements(job: int, _second: int, first: int, stop: int) -> None:
    """Elements one by one."""
    scratch = stack_bytes(16)
    given = number(job, 2) + 4 * first, number(job, 3) + 4 * first, stop - first
    _check(job, call_three(number(job, 0), (scratch, scratch + 8, *given)))


def elements_with(job: int, other_bytes: int, first: int, stop: int) -> None:
    """Elements with others (``other_bytes`` is 4) or with a number (0)."""
    scratch = stack_bytes(16)
    given = number(job, 2) + 4 * first, number(job, 3) + 4 * first, stop - first, number(job, 4) + other_bytes * first
    _check(job, call_four(number(job, 0), (scratch, scratch + 8, *given)))


def rope(job: int, _second: int, first: int, stop: int) -> None:
    """Matrices of rows and columns: pairs, cosines, sines, and whether the elements of a pair are neighbors."""
    scratch = stack_bytes(16)
    rows, columns = number(job, 4), number(job, 5)
    for matrix in range(first, stop):
        at = 4 * rows * columns * matrix
        given = number(job, 2) + at, number(job, 3) + at, rows, columns
        more = number(job, 6), number(job, 7), number(job, 8), number(job, 9)
        _check(job, call_eight(number(job, 0), (scratch, scratch + 8, *given, *more)))


def copy(job: int, columns: int, first: int, stop: int) -> None:
    """Rows of 4-byte elements into contiguous memory: rows of a matrix, bytes between matrices, rows and elements."""
    rows = number(job, 4)
    for row in range(first, stop):
        source = number(job, 2) + number(job, 5) * (row // rows) + number(job, 6) * (row % rows)
        target, step = number(job, 3) + 4 * columns * row, number(job, 7)
        if step == 4:
            for i in range(columns):
                store_f32(target, i, load_f32(source, i))
        else:
            for i in range(columns):
                store_f32(target, i, load_f32(source + step * i, 0))


def _make_store(store: Any, nbytes: int) -> Any:
    def store_heads(job: int, _second: int, first: int, stop: int) -> None:
        """Keys and values of new tokens into the cache, some heads: rows, elements of a key and of a value, and the
        addresses of ``place`` and ``state`` (see `attention_rows`).
        """
        rows, size, value_size = number(job, 4), number(job, 5), number(job, 6)
        place, position = number(job, 7), number(number(job, 8), 0)
        for head in range(first, stop):
            keys = number(place, 0) + number(place, 1) * head + nbytes * size * position
            values = number(place, 2) + number(place, 3) * head + nbytes * value_size * position
            for i in range(rows * size):
                store(keys, i, load_f32(number(job, 2), rows * size * head + i))
            for i in range(rows * value_size):
                store(values, i, load_f32(number(job, 3), rows * value_size * head + i))

    return store_heads


store_in_f32, store_in_f16, store_in_bf16 = (
    _make_store(store_f32, 4),
    _make_store(store_f16, 2),
    _make_store(store_bf16, 2),
)
