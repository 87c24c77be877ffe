"""Products on our own threads, each with a BLAS that starts none.

OpenBLAS splits even thin products over all processors and lets the threads spin while they wait for each other, which
costs far more than it gains, above all on a busy machine. Apple's Accelerate does not, and is left as it is.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from lbrx.settings import settings

# How builds of OpenBLAS name a function: plain, with 64-bit integers, and in NumPy's own wheels.
_NAMES = ("scipy_openblas_{}64_", "scipy_openblas_{}", "openblas_{}64_", "openblas_{}")


class _ThreadControl(NamedTuple):
    get: Callable[[], int]
    set: Callable[[int], None]


@cache
def _thread_control() -> _ThreadControl | None:
    """How the number of threads of NumPy's BLAS is read and set; None if it is not OpenBLAS."""
    module: Any = import_module("numpy._core._multiarray_umath")
    library = ctypes.CDLL(module.__file__)  # its symbols and those of the libraries that it is linked with
    for name in _NAMES:
        getter = getattr(library, name.format("get_num_threads"), None)
        setter = getattr(library, name.format("set_num_threads"), None)
        if getter is not None and setter is not None:
            return _ThreadControl(getter, setter)
    return None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """BLAS without threads of its own for the length of a ``with`` block, in the whole process."""
    control = _thread_control()
    if control is None:
        yield
        return
    before = control.get()
    control.set(1)
    try:
        yield
    finally:
        control.set(before)


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
