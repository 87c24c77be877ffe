"""Scores on a cluster: a task is some windows of a text, and what it gathers is put together in their order."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from lbrx.base.fast_dataclass import dataclass
from lbrx.cluster.calls import Call, results_in_order
from lbrx.cluster.connection import connected, import_ray, nodes_of, task_threads, worker_count
from lbrx.cluster.opened_models import appearance, is_open, opened_models
from lbrx.cluster.worker import alone
from lbrx.files.remote.paths import is_remote
from lbrx.jobs.score.score import ScoreJob, ScoreRunner, warm_up
from lbrx.jobs.score.tally import Tally, score_window
from lbrx.jobs.score.windows import Window
from lbrx.models.inference import LanguageModel
from lbrx.settings import settings, using

TASKS_PER_WORKER = 8


@dataclass(frozen=True, slots=True)
class ScoreOrder:
    """What all tasks of a job have in common; ``appearances`` are what the driver sees at the paths."""

    job: str
    paths: tuple[Path, ...]
    appearances: tuple[str, ...]
    ids: tuple[int, ...]
    has_reference: bool
    is_rounded: bool
    threads: int
    activation_bits: int


def cluster_score_runner(address: str) -> ScoreRunner:
    """What scores on the cluster at an address."""
    import_ray()
    return partial(_cluster_tallies, address)


def _cluster_tallies(
    address: str, jobs: Sequence[ScoreJob], threads: int | None, step: Callable[[int, str], None]
) -> list[list[Tally]]:
    tallies = [[Tally() for _ in job.models] for job in jobs]
    with connected(address) as connection:
        nodes = nodes_of(connection.ray)
        processors = task_threads(nodes, threads)
        workers = worker_count(nodes, processors)
        all_windows = sum(len(job.windows) for job in jobs)
        most_windows = max(all_windows // (workers * TASKS_PER_WORKER), 1)
        owners: list[int] = []
        calls: list[Call] = []
        for number, job in enumerate(jobs):
            order = connection.ray.put(_order(job, processors))
            for first in range(0, len(job.windows), most_windows):
                some = job.windows[first : first + most_windows]
                what = f"{job.models[0].path}: windows {first + 1} to {first + len(some)} of {len(job.windows)}"
                calls.append(Call(what, (order, some)))
                owners.append(number)

        def arrived(call: int) -> None:
            step(len(calls[call].arguments[1]), str(jobs[owners[call]].models[0].path))

        results = results_in_order(
            connection, _score, calls, threads=processors, ahead=workers * TASKS_PER_WORKER, arrived=arrived
        )
        for owner, gathered in zip(owners, results, strict=True):
            for tally, later in zip(tallies[owner], gathered, strict=True):
                tally.add(later)
    return tallies


def _order(job: ScoreJob, threads: int) -> ScoreOrder:
    paths = tuple(model.path if is_remote(model.path) else model.path.resolve() for model in job.models)
    seen = tuple(appearance(model) for model in job.models)
    computing = job.has_reference, job.is_rounded, threads, settings.activation_bits
    return ScoreOrder(uuid.uuid4().hex, paths, seen, tuple(job.ids), *computing)


def _score(order: ScoreOrder, windows: Sequence[Window]) -> list[Tally]:
    """On a worker: what models make of some windows."""
    with using(threads=order.threads, activation_bits=order.activation_bits):
        models = _models(order)
        tallies = [Tally() for _ in models]
        for window in windows:
            score_window(models, tallies, order.ids, window, order.has_reference, order.is_rounded)
    return tallies


def _models(order: ScoreOrder) -> tuple[LanguageModel, ...]:
    """The models of a job, whose kernels are ready."""
    is_new = not is_open(order.job)
    models = opened_models(order.job, order.paths, order.appearances)
    if is_new:
        with alone():
            warm_up(models, order.ids)
    return models
