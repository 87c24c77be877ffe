"""Measures candidates in this process: as many at once as there are threads, or one after the other on all threads.

A thread that measures a candidate by itself never waits for others, so that no core is idle while Python plans or
merges. What is measured does not depend on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from lbrx.base.system import available_bytes
from lbrx.base.threads import run_chunks
from lbrx.jobs.search.loop import Run, Task
from lbrx.jobs.search.settings import Measurer
from lbrx.memory.budget import budget
from lbrx.memory.resident import resident_window
from lbrx.settings import settings

Outcome = Mapping[str, float] | Exception


def local_runner(measurer: Measurer) -> Run:
    """Return what measures tasks one by one or side by side, and yields their figures in order."""

    def run(tasks: Sequence[Task]) -> Iterator[Mapping[str, float]]:
        threads = settings.threads
        size = threads if _may_run_side_by_side(measurer, threads) else 1
        for first in range(0, len(tasks), size):
            group = tasks[first : first + size]
            if 1 < len(group) == threads:
                yield from map(_figures, _side_by_side(measurer, group))
            else:
                yield from (measurer.figures(recipe, share) for recipe, share in group)

    return run


def _may_run_side_by_side(measurer: Measurer, threads: int) -> bool:
    """Whether the memory suffices. Functions of users are called one at a time."""
    has_function = measurer.settings.function is not None
    return not has_function and threads * measurer.candidate_bytes <= budget().limit_bytes // 2


def _side_by_side(measurer: Measurer, tasks: Sequence[Task]) -> list[Outcome]:
    outcomes: list[Outcome] = [{}] * len(tasks)

    def step(number: int) -> None:
        try:
            outcomes[number] = measurer.figures(*tasks[number])
        except Exception as error:  # raised when it is its turn
            outcomes[number] = error

    run_chunks(len(tasks), len(tasks), lambda: step)
    return outcomes


def _figures(outcome: Outcome) -> Mapping[str, float]:
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


@contextmanager
def inputs_stay_mapped(measurer: Measurer) -> Iterator[None]:
    """Keep the pages of the models mapped, which all candidates read, if they fit into a quarter of the memory."""
    nbytes = 2 * measurer.inputs_bytes if measurer.inputs_bytes <= available_bytes() // 4 else 0
    resident_window.widen(nbytes)
    try:
        yield
    finally:
        resident_window.widen(-nbytes)
