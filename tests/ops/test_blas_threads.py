"""Products on our own threads."""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import lbrx
from lbrx.base.system import darwin
from lbrx.engine.blas import all_blas_threads, in_pieces, in_tiles, one_blas_thread
from lbrx.ops import linear
from support.references import normal, weight_of


def blas_threads() -> list[int]:
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


def test_blas_gets_one_thread_and_its_own_back() -> None:
    with threadpool_limits(2, user_api="blas"):
        before = blas_threads()
        with one_blas_thread():
            assert set(blas_threads()) <= {1}
            with one_blas_thread():
                assert set(blas_threads()) <= {1}
            assert set(blas_threads()) <= {1}
        assert blas_threads() == before


def test_any_thread_can_hold_blas_back_and_none_keeps_control() -> None:
    seen: list[list[int]] = []
    is_seen, can_end = threading.Event(), threading.Event()

    def work() -> None:
        with one_blas_thread():
            seen.append(blas_threads())
        is_seen.set()
        can_end.wait()

    with one_blas_thread():
        pass
    with threadpool_limits(2, user_api="blas"):
        thread = threading.Thread(target=work)
        thread.start()
        is_seen.wait()
        assert set(seen[0]) <= {1}
        assert set(blas_threads()) <= {2}
    with threadpool_limits(1, user_api="blas"):
        assert set(blas_threads()) <= {1}
    can_end.set()
    thread.join()


def test_products_inside_leave_blas_at_one_thread() -> None:
    with one_blas_thread():
        linear(normal(40, 64), weight_of("bf16", 300, 64))
        assert set(blas_threads()) <= {1}


def test_blas_gets_its_threads_back_after_an_error() -> None:
    before = blas_threads()
    with pytest.raises(ZeroDivisionError), one_blas_thread():
        raise ZeroDivisionError
    assert blas_threads() == before


def test_blas_gets_all_threads_and_its_own_back() -> None:
    with threadpool_limits(1, user_api="blas"), lbrx.using(threads=2):
        with all_blas_threads():
            assert set(blas_threads()) <= {2}
        assert set(blas_threads()) <= {1}


class Accelerate(threading.local):
    """Stands in for Apple's library: the setting belongs to a thread."""

    threading_model = 0

    def BLASGetThreading(self) -> int:
        return self.threading_model

    def BLASSetThreading(self, model: Any) -> int:
        self.threading_model = model.value
        return 0


def test_accelerate_uses_one_thread_inside_our_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    accelerate = Accelerate()
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(darwin, "_accelerate", lambda: accelerate)
    monkeypatch.setattr(darwin, "set_quality_of_service", lambda _: None)
    seen: dict[int, int] = {}
    both = threading.Barrier(2)

    def step(_: int) -> None:
        seen[threading.get_ident()] = accelerate.threading_model
        both.wait(60)

    with lbrx.using(threads=2):
        with one_blas_thread():
            in_tiles(2, lambda: step)
            with all_blas_threads():
                assert accelerate.threading_model == 0
            assert accelerate.threading_model == 1
        assert accelerate.threading_model == 0
    assert list(seen.values()) == [1, 1]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("size", "piece"), [(10, 3), (9, 3), (2, 3), (0, 3)])
def test_pieces_cover_the_range_once(threads: int, size: int, piece: int) -> None:
    counts, lock = np.zeros(size, np.int64), threading.Lock()

    def work(first: int, stop: int) -> None:
        assert first % piece == 0
        with lock:
            counts[first:stop] += 1

    with lbrx.using(threads=threads):
        in_pieces(size, piece, work)
    np.testing.assert_array_equal(counts, 1)
