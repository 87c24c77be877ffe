"""Steps on several threads, and steps within steps."""

from __future__ import annotations

import threading

from lbrx.base.threads import Step, run_chunks


def test_every_step_runs_once() -> None:
    for threads in (1, 2, 5):
        done: list[int] = []
        run_chunks(7, threads, lambda done=done: done.append)  # type: ignore[misc]
        assert sorted(done) == list(range(7))


def test_steps_within_a_step_run_on_its_thread() -> None:
    second, threads, together = threading.Event(), set(), []

    def inner(number: int) -> None:
        threads.add(threading.get_ident())
        if number == 0:
            together.append(second.wait(0.3))  # another thread would run the second step meanwhile
        else:
            second.set()

    def outer() -> Step:
        return lambda _number: run_chunks(2, 2, lambda: inner)

    run_chunks(1, 1, outer)
    assert threads == {threading.get_ident()}
    assert together == [False]
