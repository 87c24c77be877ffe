"""Plain threads over chunks. Kernels are serial and release the interpreter lock, so parallelism is all here."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from itertools import count
from os import register_at_fork

from lbrx.base import system

_inside = threading.local()
Step = Callable[[int], None]


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="lbrx", initializer=system.prefer_performance_cores)


def is_inside_step() -> bool:
    """Whether this thread runs a step now: other threads have work of their own then."""
    return getattr(_inside, "active", False)


def split_range(size: int, piece: int, unit: int, threads: int) -> list[tuple[int, int]]:
    """The first and one past the last element of the pieces of a range; ``piece`` is a multiple of ``unit``.

    If some of the threads run on slower cores, the last two pieces of each thread are cut in four, so that a slow core
    does not delay the end by a whole piece.

    >>> split_range(10, 4, 2, threads=1)
    [(0, 4), (4, 8), (8, 10)]
    """
    has_slow_cores = threads > system.performance_cpu_count() < system.cpu_count()
    long = max(size - 2 * threads * piece, 0) // piece * piece if has_slow_cores else size
    short = max(piece // (4 * unit), 1) * unit
    starts = [*range(0, long, piece), *range(long, size, short)]
    return list(zip(starts, [*starts[1:], size], strict=True))


@system.guarded
def run_chunks(chunks: int, threads: int, worker: Callable[[], Step]) -> None:
    """Call steps 0 to ``chunks`` - 1, each once, in any order; every thread makes a step function of its own.

    The first error stops all threads after their current step and is raised. Called from within a step, it runs
    on that thread alone. If the system refuses to start a thread, the others do all of the work.
    """
    numbers = count()
    stopped = threading.Event()

    def work() -> None:
        if stopped.is_set():
            return
        step = worker()
        outer = is_inside_step()
        _inside.active = True
        try:
            while not stopped.is_set() and (number := next(numbers)) < chunks:
                step(number)
        except BaseException:
            stopped.set()
            raise
        finally:
            _inside.active = outer

    threads = min(threads, chunks)
    if threads <= 1 or is_inside_step():
        work()
        return
    futures: list[Future[None]] = []
    with suppress(RuntimeError):  # no more threads
        futures += (_pool(threads - 1).submit(work) for _ in range(threads - 1))
    try:
        work()
    finally:
        stopped.set()  # for work that is still in the queue
        errors = [None if future.cancel() else future.exception() for future in futures]  # not begun: not needed
    for error in errors:
        if error is not None:
            raise error


register_at_fork(after_in_child=_pool.cache_clear)
