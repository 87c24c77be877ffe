"""Timing side by side: ours and the peer's turns alternate, and the best of each counts."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Thread

import numpy as np

from lbrx.base import system

Job = Callable[[], object]
_TURN_SECONDS = 0.02


@dataclass(frozen=True)
class Figure:
    """One result: ``ratio`` is how many times faster than the peer, or the share of a limit that is reached."""

    suite: str
    name: str
    ratio: float
    target: float
    detail: str

    @property
    def reached(self) -> bool:
        return self.ratio >= self.target


def seconds(job: Job) -> float:
    """The best time of a job, begun when threads that a library left spinning after the last one have gone to sleep.

    A short job is called again and again for a moment, as it would be in a program that does much of it: the first call
    after a sleep tells how long the machine takes to wake up.
    """
    time.sleep(0.1)
    best, end = float("inf"), time.perf_counter() + _TURN_SECONDS
    while True:
        start = time.perf_counter()
        job()
        now = time.perf_counter()
        best = min(best, now - start)
        if now >= end:
            return best


def side_by_side(ours: Job, peer: Job, turns: int = 5) -> tuple[float, float]:
    """The best times of both, taken in turns so that a noisy moment hits both alike."""
    ours()
    gc.collect()
    best_ours = best_peer = float("inf")
    for _ in range(turns):
        best_peer = min(best_peer, seconds(peer))
        best_ours = min(best_ours, seconds(ours))
    return best_ours, best_peer


def faster(suite: str, name: str, ours: Job, peer: Job, target: float, turns: int = 5) -> Figure:
    """How many times faster than the peer."""
    own, other = side_by_side(ours, peer, turns)
    return Figure(suite, name, other / own, target, f"{_time(own)} against {_time(other)}")


def _time(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.2f} ms" if value >= 1e-3 else f"{value * 1e6:.0f} us"


class CopyLimit:
    """The machine's limit: all cores copying memory. ``nbytes`` counts what is read and what is written.

    They copy a mebibyte at a time, as a pass does. The C library copies hundreds of mebibytes in one call past the
    caches and moves up to 1.8 times as much; a loop that only reads moves 1.1 times as much.
    """

    def __init__(self, megabytes: int = 512) -> None:
        self.source = np.ones(megabytes << 20, np.uint8)
        self.target = np.zeros_like(self.source)
        self.threads = system.cpu_count()

    @property
    def nbytes(self) -> int:
        return 2 * self.source.size

    def copy(self) -> None:
        step = 1 << 20
        pieces = range(0, self.source.size, step)

        def work(first: int) -> None:
            for start in pieces[first :: self.threads]:
                self.target[start : start + step] = self.source[start : start + step]

        workers = [Thread(target=work, args=(number,)) for number in range(self.threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    def share(self, suite: str, name: str, job: Job, nbytes: int, target: float, turns: int = 20) -> Figure:
        """The share of copy bandwidth that a job reaches which moves ``nbytes``."""
        own, other = side_by_side(job, self.copy, turns)
        ours, limit = nbytes / own / 1e9, self.nbytes / other / 1e9
        return Figure(suite, name, ours / limit, target, f"{ours:.1f} of {limit:.1f} GB/s")
