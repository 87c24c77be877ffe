"""Helpers that share short passes: every piece is done once, by whoever comes, for any callers at once."""

from __future__ import annotations

import ctypes
import multiprocessing
import threading
import time
from itertools import pairwise

import numpy as np
import pytest

import lbrx
from lbrx.base import system
from lbrx.base import threads as threads_module
from lbrx.base.threads import run_chunks, split_range
from lbrx.devices.cpu.build import team as team_module
from lbrx.devices.cpu.build.kernel_cache import _FUNCTION
from lbrx.devices.cpu.build.team import SHORT_NANOSECONDS, Team, run_together, team

ELEMENTS = 700_001


def _values(seed: int) -> lbrx.Tensor:
    return lbrx.tensor(np.random.default_rng(seed).standard_normal(ELEMENTS).astype(np.float32))


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_results_do_not_depend_on_threads(threads: int) -> None:
    x, y = _values(1), _values(2)
    with lbrx.using(threads=1):
        expected = (x * 2 + y).numpy(), float(x.sum()), float(x.dot(y))
    with lbrx.using(threads=threads):
        for _ in range(200):
            assert np.array_equal((x * 2 + y).numpy(), expected[0])
            assert (float(x.sum()), float(x.dot(y))) == expected[1:]


def test_helpers_come_and_go() -> None:
    """After a pause the helpers sleep; the next passes are right whether they have woken up or not."""
    x = _values(3)
    expected = float(x.sum())
    for pause in (0.0, 0.0, 0.05, 0.0, 0.002, 0.05):
        time.sleep(pause)
        assert float(x.sum()) == expected


def test_callers_on_many_threads() -> None:
    tensors = [_values(seed) for seed in range(4)]
    expected = [float(x.sum()) for x in tensors]
    wrong: list[int] = []

    def call(number: int) -> None:
        for _ in range(100):
            if float(tensors[number].sum()) != expected[number]:
                wrong.append(number)

    callers = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


def test_inside_a_step_nobody_is_asked_for_help() -> None:
    x = _values(5)
    expected = float(x.sum())
    found: list[float] = []
    run_chunks(20, 2, lambda: lambda _: found.append(float(x.sum())))
    assert found == [expected] * 20


def test_a_forked_process_has_a_team_of_its_own() -> None:
    x = _values(6)
    expected = float(x.sum())
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    child = context.Process(target=lambda: results.put([float(x.sum()) for _ in range(20)]))
    child.start()
    assert results.get() == [expected] * 20
    child.join()


@pytest.mark.skipif(system.cpu_count() < 2, reason="needs two processors")
def test_a_team_has_no_more_helpers_than_processors() -> None:
    with lbrx.using(threads=64):
        float(_values(7).sum())
    assert team()._helpers < system.cpu_count()


def test_refused_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither of the team nor of the pools: the thread that calls does all of the work."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    values = np.arange(1 << 20, dtype=np.float32)
    expected = values * 2 + 1
    monkeypatch.setattr(threading.Thread, "start", refuse)
    fresh = Team()
    monkeypatch.setattr(team_module, "team", lambda: fresh)
    with lbrx.using(threads=4):
        np.testing.assert_array_equal((lbrx.tensor(values) * 2 + 1).numpy(), expected)
    done: list[int] = []
    threads_module._pool.cache_clear()
    try:
        run_chunks(100, 3, lambda: done.append)
    finally:
        threads_module._pool.cache_clear()
    assert sorted(done) == list(range(100))
    assert fresh._helpers == 0


def _pieces(stop: int, block: int, most: int, threads: int) -> list[tuple[int, int]]:
    """The pieces that a team makes of 0 to ``stop``, in their order."""
    pieces: list[tuple[int, int]] = []

    def kernel(_result: int, _exception: int, _ints: int, _floats: int, low: int, high: int) -> int:
        pieces.append((low, high))
        return 0

    callback = _FUNCTION(kernel)
    address = ctypes.cast(callback, ctypes.c_void_p).value
    assert address
    assert Team().run(address, 0, 0, 0, stop, block, most, threads)
    return sorted(pieces)


@pytest.mark.parametrize(("stop", "block", "most"), [(10_000, 3, 10_000), (10_000, 3, 50), (7, 4, 9), (1, 1, 1)])
def test_pieces_shrink_and_cover_the_range_once(stop: int, block: int, most: int) -> None:
    pieces = _pieces(stop, block, most, 2)
    assert pieces[0][0] == 0
    assert pieces[-1][1] == stop
    assert all(first[1] == second[0] and first[1] % block == 0 for first, second in pairwise(pieces))
    sizes = [-(-(high - low) // block) for low, high in pieces]
    assert sizes == sorted(sizes, reverse=True)
    blocks = -(-stop // block)
    assert sizes[0] == min(max(blocks // 8, 1), most)
    assert sizes[-1] <= max(blocks // 128, 1)


def test_short_jobs_are_left_to_the_performance_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    threads_of_jobs: list[int] = []

    class Recorded:
        processors, fast_processors = 8, 4

        def run(self, *job: int) -> bool:
            threads_of_jobs.append(job[-1])
            return True

    monkeypatch.setattr(team_module, "team", Recorded)
    with lbrx.using(threads=6):
        for nanoseconds in (SHORT_NANOSECONDS, SHORT_NANOSECONDS - 1):
            run_together(_FUNCTION(), 0, 0, 0, 1000, 1, nanoseconds=nanoseconds)
    assert threads_of_jobs == [6, 4]


def test_the_last_chunks_are_short_where_cores_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "cpu_count", lambda: 8)
    monkeypatch.setattr(system, "performance_cpu_count", lambda: 8)
    assert split_range(100, 8, 2, threads=8)[-1] == (96, 100)
    monkeypatch.setattr(system, "performance_cpu_count", lambda: 4)
    assert split_range(100, 8, 2, threads=4)[-1] == (96, 100)
    pieces = split_range(201, 8, 2, threads=8)
    assert pieces[:9] == [*((start, start + 8) for start in range(0, 72, 8))]
    assert pieces[9:] == [(start, min(start + 2, 201)) for start in range(72, 201, 2)]
    with lbrx.using(threads=1, chunk_elements=1 << 16):
        expected = float(_values(9).to("bf16").kth_largest(1000))
    with lbrx.using(threads=8, chunk_elements=1 << 16):
        assert float(_values(9).to("bf16").kth_largest(1000)) == expected
