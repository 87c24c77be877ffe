"""Products of rows as jobs for a team: some rows of the weight, by a function of `gemv_quantized` or `gemv_float`.

``job`` is the address of int64 numbers: the function, a status that is set if it is not 0, the addresses of
the rows and of the results, and then what each task says.
"""

from __future__ import annotations

from lbrx.devices.cpu.simd.calls import make_call
from lbrx.devices.cpu.simd.elements import load_i64 as number
from lbrx.devices.cpu.simd.elements import store_i64
from lbrx.devices.cpu.simd.memory import stack_bytes

call_coded, call_float = make_call(11), make_call(10)


def coded_rows(job: int, row_bytes: int, first: int, stop: int) -> None:
    """Rows times vectors that are coded: columns, codes, scales, sums, vectors, out columns."""
    scratch = stack_bytes(16)
    blocks, out = number(job, 2) + row_bytes * first, number(job, 3) + 4 * first
    vectors = number(job, 5), number(job, 6), number(job, 7), number(job, 8)
    status = call_coded(
        number(job, 0), (scratch, scratch + 8, blocks, stop - first, number(job, 4), *vectors, out, number(job, 9))
    )
    if status != 0:
        store_i64(job, 1, status)


def float_rows(job: int, row_bytes: int, first: int, stop: int) -> None:
    """Rows times vectors of f32: row bytes, columns, x, vectors, out columns."""
    scratch = stack_bytes(16)
    weights, out = number(job, 2) + row_bytes * first, number(job, 3) + 4 * first
    vectors = number(job, 6), number(job, 7)
    status = call_float(
        number(job, 0),
        (scratch, scratch + 8, weights, number(job, 4), stop - first, number(job, 5), *vectors, out, number(job, 8)),
    )
    if status != 0:
        store_i64(job, 1, status)
