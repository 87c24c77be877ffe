"""Products on our own threads, each with a BLAS that starts none.

OpenBLAS splits even thin products over all processors and lets the threads spin while they wait for each other, which
costs far more than it gains, above all on a busy machine. Apple's Accelerate does not, and is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

from threadpoolctl import ThreadpoolController

from lbrx.settings import settings


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """BLAS without threads of its own for the length of a ``with`` block, in the whole process."""
    with _controller().limit(limits=1, user_api="blas"):
        yield


def in_pieces(size: int, piece: int, work: Callable[[int, int], None]) -> None:
    """Call ``work(first, stop)`` for pieces of a range, on all threads; where they begin depends on the sizes alone.

    >>> found = []
    >>> in_pieces(5, 2, lambda first, stop: found.append((first, stop)))
    >>> sorted(found)
    [(0, 2), (2, 4), (4, 5)]
    """
    from lbrx.devices.cpu.threads import run_chunks

    def step(number: int) -> None:
        work(number * piece, min((number + 1) * piece, size))

    with one_blas_thread():
        run_chunks(-(-size // piece), settings.threads, lambda: step)
