"""Work on our own threads, each with a BLAS that starts none.

Every output tile is made by one call of BLAS on one thread, so that results do not depend on how many threads there
are. Apple's Accelerate keeps this setting for each thread; before macOS 15 it has none, and is left as it is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.base import system
from lbrx.settings import settings


@cache
def _libraries() -> list[Any]:
    from threadpoolctl import ThreadpoolController

    controllers: list[Any] = ThreadpoolController().select(user_api="blas").lib_controllers
    return controllers


def _set_threads(library: Any, threads: int) -> None:
    """Set the threads of BLAS from any thread, although threadpoolctl obeys only the one that did so first."""
    release = getattr(library, "clear_controlling_thread", lambda **_: None)
    release(force=True)
    library.set_num_threads(threads)
    release(force=True)


class _Threads:
    """Counts who needs a BLAS with so many threads: the first sets it, the last one sets it back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before: list[int] = []

    @property
    def is_wanted(self) -> bool:
        return self._users > 0

    def enter(self, threads: int) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._before = [library.get_num_threads() for library in _libraries()]
                for library in _libraries():
                    _set_threads(library, threads)

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                for library, threads in zip(_libraries(), self._before, strict=True):
                    _set_threads(library, threads)


_single_threaded, _multi_threaded = _Threads(), _Threads()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """BLAS without threads of its own for the length of a ``with`` block, in the whole process; it may be nested."""
    _single_threaded.enter(1)
    was_single = system.set_accelerate_threads(True)
    try:
        yield
    finally:
        system.set_accelerate_threads(was_single)
        _single_threaded.leave()


@contextmanager
def all_blas_threads() -> Iterator[None]:
    """BLAS with threads of its own, for what no pieces can be made of; not within `one_blas_thread`."""
    _multi_threaded.enter(settings.threads)
    was_single = system.set_accelerate_threads(settings.threads == 1)
    try:
        yield
    finally:
        system.set_accelerate_threads(was_single)
        _multi_threaded.leave()


def product(left: npt.NDArray[Any], right: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
    """One call of BLAS; overflow and NaN are kept in the result and not warned of."""
    with np.errstate(all="ignore"):
        np.matmul(left, right, out=out)


def in_pieces(size: int, piece: int, work: Callable[[int, int], None]) -> None:
    """``in_ranges`` with a BLAS that starts no threads; where pieces begin depends on the sizes alone."""
    with one_blas_thread():
        in_ranges(size, piece, work)


def in_tiles(tiles: int, worker: Callable[[], Callable[[int], None]]) -> None:
    """Call steps 0 to ``tiles`` - 1 on all threads; every thread makes a step function, with scratch of its own."""
    from lbrx.base.threads import run_chunks

    def start() -> Callable[[int], None]:
        if _single_threaded.is_wanted:
            system.set_accelerate_threads(True)  # the caller's thread has it already; the others are ours
        return worker()

    run_chunks(tiles, settings.threads, start)


def in_ranges(size: int, piece: int, work: Callable[[int, int], None]) -> None:
    """Call ``work(first, stop)`` for the pieces of a range, on all threads.

    >>> found = []
    >>> in_ranges(5, 2, lambda first, stop: found.append((first, stop)))
    >>> sorted(found)
    [(0, 2), (2, 4), (4, 5)]
    """

    def step(number: int) -> None:
        work(number * piece, min((number + 1) * piece, size))

    in_tiles(-(-size // piece), lambda: step)
