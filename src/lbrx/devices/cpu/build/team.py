"""Threads that help with passes over memory. To wake one takes longer than a short pass: they stay awake for a moment.

The caller puts a job on a board and does its pieces; helpers that watch the board take some of them. A helper watches
for a fraction of a millisecond after its last piece and then sleeps, so the first of several short passes is done by
the caller alone, and the next ones by all. What is computed does not depend on who computes it.

Pieces shrink towards the end of a job, so that the efficiency cores of a Mac, which are three to four times slower, do
not delay it. Short jobs are left to the performance cores.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import numpy as np

from lbrx.base import system
from lbrx.base.threads import is_inside_step
from lbrx.devices.cpu.build.kernel_cache import EXCEPTION_ADDRESS, RESULT_ADDRESS, Kernel, native_function
from lbrx.devices.cpu.kernels.team_board import (
    BOARD_WORDS,
    LEAST_PER_THREAD,
    SHARES,
    SHARES_PER_THREAD,
    STATUS,
    WATCHING,
)
from lbrx.errors import KernelError
from lbrx.settings import settings

SHORT_NANOSECONDS = 1_000_000  # of work on one core: a job that only performance cores take part in
POLLS = 20_000  # of about 10 to 40 ns each


class Team:
    """Helpers for one caller at a time."""

    def __init__(self) -> None:
        memory = np.zeros(BOARD_WORDS + 16, np.int64)
        first = -(memory.ctypes.data // 8) % 16  # to the start of a pair of cache lines
        self._board = memory.data[first : first + BOARD_WORDS]
        self._board[SHARES] = 1  # a helper may divide by it before the first job is complete
        self._address = memory.ctypes.data + 8 * first
        self._lead = _compiled("lead", 11)
        self.processors = system.cpu_count()
        self.fast_processors = system.performance_cpu_count()
        self._helpers = 0
        self._wanted = threading.Semaphore(0)
        self._busy = threading.Lock()

    def run(
        self, kernel: int, ints: int, floats: int, first: int, stop: int, block: int, most: int, threads: int
    ) -> bool:
        """Call a kernel for pieces of ``first`` to ``stop``; False, and nothing done, if they help another.

        A piece is whole blocks, at most ``most`` of them.
        """
        if not self._busy.acquire(blocking=False):
            return False
        try:
            self._wake(threads - 1)
            blocks = -((first - stop) // block)
            least = max(blocks // (LEAST_PER_THREAD * threads), 1)
            job = first, stop, block, least, most, SHARES_PER_THREAD * threads, RESULT_ADDRESS
            self._lead(RESULT_ADDRESS, EXCEPTION_ADDRESS, self._address, kernel, ints, floats, *job)
            status: int = self._board[STATUS]
        finally:
            self._busy.release()
        check_status(status)
        return True

    @contextmanager
    def helping(self, threads: int) -> Iterator[int]:
        """The address of the board while helpers watch it; 0 if they help another, or if none are wanted."""
        if threads < 2 or not self._busy.acquire(blocking=False):
            yield 0
            return
        try:
            self._wake(threads - 1)
            yield self._address
        finally:
            self._busy.release()

    def _wake(self, helpers: int) -> None:
        with suppress(RuntimeError):  # no more threads: the others do all of the work
            while self._helpers < helpers:
                threading.Thread(target=self._help, name="lbrx-team", daemon=True).start()
                self._helpers += 1
        for _ in range(min(helpers, self._helpers) - self._board[WATCHING]):
            self._wanted.release()

    def _help(self) -> None:
        system.prefer_performance_cores()
        help_out = _compiled("help_out", 2)
        while True:
            self._wanted.acquire()
            while self._wanted.acquire(blocking=False):
                pass  # one call is enough for a helper that has overslept several
            help_out(RESULT_ADDRESS, EXCEPTION_ADDRESS, self._address, POLLS)


def _compiled(name: str, arguments: int) -> Any:
    return native_function("lbrx.devices.cpu.kernels.team", name, arguments)


def run_together(
    kernel: Kernel,
    address: int,
    ints: int,
    floats: int,
    stop: int,
    block: int,
    first: int = 0,
    most: int | None = None,
    nanoseconds: float = SHORT_NANOSECONDS,
) -> None:
    """Call a kernel, whose code lies at ``address``, over all elements: in pieces of whole blocks if threads can help.

    A piece has at most ``most`` elements, but no less than a block. ``nanoseconds`` is a guess at what one core takes
    for all elements.
    """
    elements = stop - first
    processors = team().fast_processors if nanoseconds < SHORT_NANOSECONDS else team().processors
    threads = min(settings.threads, processors, -(-elements // block))
    if threads > 1 and not is_inside_step():
        most_blocks = max((elements if most is None else most) // block, 1)
        if team().run(address, ints, floats, first, stop, block, most_blocks, threads):
            return
    check_status(kernel(RESULT_ADDRESS, EXCEPTION_ADDRESS, ints, floats, first, stop))


def check_status(status: int) -> None:
    """Raise if a kernel says that it failed."""
    if status:
        raise KernelError(f"a kernel stopped with status {status}")


@cache
def team() -> Team:
    """The helpers of this process."""
    return Team()


os.register_at_fork(after_in_child=team.cache_clear)
