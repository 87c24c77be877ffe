"""Jobs over the rows of a weight: memory of a thread for a job, and runs on all threads that are awake."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lbrx.devices.cpu.build.native import address, code_address, compiled
from lbrx.devices.cpu.build.team import check_status, run_together
from lbrx.engine.arrays import Floats
from lbrx.engine.blas import in_ranges
from lbrx.tensors.storage import Storage

SCRATCH_START = 128  # bytes: a job lies before them
Window = Callable[[int, int], npt.NDArray[Any]]  # some rows of a weight as they are stored
NANOSECONDS_PER_BYTE = 0.1  # of weights, on one core
_LEAST_BYTES = 64 << 10  # of rows that are worth another thread
_JOB, _STATUS = (struct.Struct(f"={count}q") for count in (10, 2))  # the status is the second number
_ROOM = 64 << 10


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
        """At least so many bytes, and their address."""
        if nbytes > self._memory.nbytes:
            self._make(nbytes)
        return self._memory, self._address


job_scratch = _Scratch()


class StoredRows(NamedTuple):
    """The rows of a weight as they are stored; ``start`` is the address of the first one, if they are in memory."""

    row_bytes: int
    window: Window
    start: int | None


class CodedJob(NamedTuple):
    """A product of coded vectors, to be run later: first ``coder`` for the job, then the task for its rows.

    ``words`` makes the job from the addresses of scratch memory, vectors and results. The coder writes an f32 that is
    not 0 if a number is not finite, so that the product has to be computed otherwise. ``coding`` is what the coded
    vectors depend on besides the vectors.
    """

    coding: tuple[object, ...]
    scratch_bytes: int
    coder: int
    watched_bytes: int
    task: int
    second: int
    rows: int
    least_rows: int
    words: Callable[[Any, Any, Any], tuple[Any, ...]]
    storages: tuple[Storage, ...]
    has_status: bool = True  # the second word of the job is set if the task fails


def least_rows(row_bytes: int) -> int:
    """How many rows are worth another thread."""
    return max(1, _LEAST_BYTES // max(row_bytes, 1))


@cache
def task(name: str) -> tuple[Any, int]:
    """A task of `gemv_tasks`, and the address of its code."""
    return compiled("gemv_tasks", name, 4), code_address("gemv_tasks", name, 4)


def check_job(memory: memoryview) -> None:
    """Raise if the job at the start of a thread's scratch memory failed."""
    check_status(_STATUS.unpack_from(memory)[1])


def in_rows(task_name: str, function: int, numbers: tuple[int, ...], stored: StoredRows, out: Floats) -> None:
    """Run a task over all rows, where they are stored or as they are read.

    A row is computed by itself, so that it does not matter how many of them a thread takes at a time.
    """
    rows, target, row_bytes = out.shape[1], address(out), stored.row_bytes
    kernel, code = task(task_name)
    least = least_rows(row_bytes)

    def run_rows(weights: int, first: int, stop: int) -> None:
        memory, job = job_scratch.borrow_buffer(0)
        _JOB.pack_into(memory, 0, function, 0, weights, target + 4 * first, *numbers)
        nanoseconds = (stop - first) * row_bytes * NANOSECONDS_PER_BYTE
        run_together(kernel, code, job, row_bytes, stop - first, least, nanoseconds=nanoseconds)
        check_job(memory)

    def read_and_run(first: int, stop: int) -> None:
        window = stored.window(first, stop)
        run_rows(address(window), first, stop)

    if stored.start is None:
        in_ranges(rows, least, read_and_run)
    else:
        stored.window(0, rows)  # raises an error if they are no longer there
        run_rows(stored.start, 0, rows)
