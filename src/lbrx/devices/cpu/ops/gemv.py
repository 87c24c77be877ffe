"""A weight times a few vectors: its rows are read once, and decoded in registers.

For Q4_0, Q8_0, Q4_K and Q6_K the vectors are first coded as i16 in blocks of 32, and the products summed as integers.
What that changes in a result is at most 2**-16 of the sum, over blocks, of the vector's largest magnitude in the block
times the magnitudes of the weights there; about as much as rounding the vector to f16 would.
Other weights are multiplied in f32: within (k / 32 + 8) 2**-24 of the sum of the magnitudes of all products.

Pages of mapped weights are left to the system, which keeps them as long as it has room: a model that writes a text
comes back to all of its weights for every word.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lbrx.devices.cpu.build.kernel_cache import EXCEPTION_ADDRESS, RESULT_ADDRESS
from lbrx.devices.cpu.build.native import address, code_address, compiled, run
from lbrx.devices.cpu.build.team import check_status, run_together
from lbrx.devices.cpu.ops.weight_rows import HalfRows, MappedRows, Rows, rows_of
from lbrx.engine.arrays import Floats
from lbrx.engine.blas import in_ranges
from lbrx.memory.scratch import borrowing
from lbrx.tensors.codecs.codec import codec
from lbrx.tensors.coded import Blocks
from lbrx.tensors.storage import Bytes
from lbrx.tensors.tensor import Tensor

CODED_BLOCKS = ("q4_0", "q8_0", "q4_k", "q6_k")
_CODED_COLUMNS, _MOST_TOGETHER = 32, 4  # a kernel takes so many blocks of so many columns at a time
_LEAST_BYTES = 64 << 10  # of rows that are worth another thread
_DECODED_BYTES = 128 << 10
_JOB, _CODED_JOB, _STATUS = (struct.Struct(f"={count}q") for count in (10, 11, 2))  # the status is the second number
_WATCHED_NUMBER = struct.Struct("=f")
_WATCHED, _SCRATCH_START = 96, 128  # bytes: a job lies before them
_ROOM = 64 << 10
Window = Callable[[int, int], npt.NDArray[Any]]  # some rows of a weight as they are stored


class _Scratch(threading.local):
    """Memory of a thread for a job and the coded vectors: it is used again, as calls are many and short."""

    def __init__(self) -> None:
        self._make(_ROOM)

    def _make(self, nbytes: int) -> None:
        memory = np.empty(nbytes + 64, np.uint8)
        first = -memory.ctypes.data % 64
        self._memory = memory.data[first : first + nbytes]
        self._address = memory.ctypes.data + first

    def borrow_buffer(self, nbytes: int) -> tuple[memoryview, int]:
        """The memory, at least so many bytes, and where it lies."""
        if nbytes > self._memory.nbytes:
            self._make(nbytes)
        return self._memory, self._address


_scratch = _Scratch()


def _least_rows(row_bytes: int) -> int:
    return max(1, _LEAST_BYTES // max(row_bytes, 1))


def gemv(x: Floats, weight: Tensor, out: Floats) -> None:
    """``x`` [n, k] times the rows of a weight [m, k] into ``out`` [n, m], for small n."""
    blocks = weight.expr
    if type(blocks) is Blocks and blocks.codec in CODED_BLOCKS and _gemv_quantized(x, blocks, out):
        return
    rows = rows_of(weight)
    if isinstance(rows, MappedRows):
        array = rows.array
        stored = _StoredRows(array.strides[0], lambda first, stop: array[first:stop], address(array))
        _gemv_float(x, stored, "f32", out)
    elif isinstance(rows, HalfRows):
        _gemv_float(x, _StoredRows(2 * weight.shape[1], rows.window, rows.address), weight.dtype.name, out)
    else:
        _gemv_decoded(x, rows, out)


class _StoredRows(NamedTuple):
    """The rows of a weight as they are stored; ``start`` is the address of the first one, if they are in memory."""

    row_bytes: int
    window: Window
    start: int | None


class _CodedLayout(NamedTuple):
    """Where a thread's scratch memory has what a product with coded vectors needs, and the kernels that it takes."""

    scratch_bytes: int
    codes: int
    scales: int
    sums: int
    row_bytes: int
    least_rows: int
    function: int
    code: Any


@cache
def _coded_layout(codec_name: str, vectors: int, columns: int) -> _CodedLayout:
    block_codec, count = codec(codec_name), columns // _CODED_COLUMNS
    code_bytes = 2 * vectors * -(-count // _MOST_TOGETHER) * _MOST_TOGETHER * _CODED_COLUMNS
    scale_bytes = 4 * vectors * count
    scales = _SCRATCH_START + code_bytes
    sums, row_bytes = scales + scale_bytes, columns // block_codec.block_elements * block_codec.block_bytes
    coder = f"code_for_{codec_name}" if codec_name in ("q4_0", "q4_k") else "code_vectors"
    return _CodedLayout(
        *(sums + scale_bytes, _SCRATCH_START, scales, sums, row_bytes, _least_rows(row_bytes)),
        *(code_address("gemv_quantized", codec_name, 9), compiled("gemv_quantized", coder, 1)),
    )


def _gemv_quantized(x: Floats, blocks: Blocks, out: Floats) -> bool:
    """Returns False, with nothing written, if a number is not finite."""
    vectors, columns = x.shape
    layout, storage = _coded_layout(blocks.codec, vectors, columns), blocks.storage
    memory, start = _scratch.borrow_buffer(layout.scratch_bytes)
    coded = start + layout.codes, start + layout.scales, start + layout.sums
    row_bytes, rows, weights_start = layout.row_bytes, out.shape[1], storage.address
    numbers = columns, *coded, vectors, rows
    _CODED_JOB.pack_into(memory, 0, layout.function, 0, weights_start or 0, address(out), *numbers, address(x))
    check_status(layout.code(RESULT_ADDRESS, EXCEPTION_ADDRESS, start))
    if _WATCHED_NUMBER.unpack_from(memory, _WATCHED)[0] != 0:
        return False
    if weights_start is not None:  # the usual case, without detours: calls are many and short
        storage.read_at(0, rows * row_bytes)  # says so if they are no longer there
        run_together(*_task("coded_rows"), start, row_bytes, rows, layout.least_rows)
        check_status(_STATUS.unpack_from(memory)[1])
        return True

    def window(first: int, stop: int) -> Bytes:
        return storage.read_at(first * row_bytes, (stop - first) * row_bytes)

    _in_rows("coded_rows", layout.function, numbers, _StoredRows(row_bytes, window, None), out)
    return True


def _gemv_float(x: Floats, stored: _StoredRows, dtype_name: str, out: Floats) -> None:
    vectors, columns = x.shape
    numbers = stored.row_bytes, columns, address(x), vectors, out.shape[1], 0
    _in_rows("float_rows", code_address("gemv_float", dtype_name, 8), numbers, stored, out)


@cache
def _task(name: str) -> tuple[Any, int]:
    return compiled("gemv_tasks", name, 4), code_address("gemv_tasks", name, 4)


def _in_rows(task: str, function: int, numbers: tuple[int, ...], stored: _StoredRows, out: Floats) -> None:
    """Run a task of the kernels over all rows: where they lie, on all threads that are awake, or as they are read.

    A row is computed by itself, so that it does not matter how many of them a thread takes at a time.
    """
    rows, target, row_bytes = out.shape[1], address(out), stored.row_bytes
    kernel, code = _task(task)
    least_rows = _least_rows(row_bytes)

    def run_rows(weights: int, first: int, stop: int) -> None:
        memory, job = _scratch.borrow_buffer(0)
        _JOB.pack_into(memory, 0, function, 0, weights, target + 4 * first, *numbers)
        run_together(kernel, code, job, row_bytes, stop - first, least_rows)
        check_status(_STATUS.unpack_from(memory)[1])

    def read_and_run(first: int, stop: int) -> None:
        window = stored.window(first, stop)
        run_rows(address(window), first, stop)

    if stored.start is None:
        in_ranges(rows, least_rows, read_and_run)
    else:
        stored.window(0, rows)  # says so if they are no longer there
        run_rows(stored.start, 0, rows)


def _gemv_decoded(x: Floats, rows: Rows, out: Floats) -> None:
    vectors, columns = x.shape
    most = max(1, _DECODED_BYTES // (4 * columns))

    def work(first: int, stop: int) -> None:
        with borrowing() as borrow:
            tile = borrow(4 * (stop - first) * columns).view(np.float32).reshape(-1, columns)
            rows.read(first, stop, tile)
            outputs = address(x), vectors, address(out) + 4 * first, out.shape[1]
            run("gemv_float", "f32", address(tile), 4 * columns, stop - first, columns, *outputs)

    in_ranges(out.shape[1], most, work)
