"""Searches on a cluster: each task measures one candidate."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from lbrx.cluster.calls import Call, results_in_order
from lbrx.cluster.connection import connected, import_ray, nodes_of, task_threads, worker_count
from lbrx.jobs.search.loop import Run, Task
from lbrx.jobs.search.settings import Measurer, SearchSettings
from lbrx.settings import settings as process_settings
from lbrx.settings import using

_measurers: dict[bytes, Measurer] = {}


def cluster_search_runner(address: str, settings: SearchSettings) -> Run:
    """Return what measures candidates on the cluster at an address."""
    import_ray()
    return partial(_measured, address, settings)


def _measured(address: str, settings: SearchSettings, tasks: Sequence[Task]) -> Iterable[Mapping[str, float]]:
    if not tasks:
        return []
    with connected(address) as connection:
        nodes = nodes_of(connection.ray)
        processors = task_threads(nodes, None)
        shared = connection.ray.put((pickle.dumps(settings), processors, process_settings.activation_bits))
        calls = [Call(f"candidate {number + 1}", (shared, task)) for number, task in enumerate(tasks)]
        ahead = worker_count(nodes, processors) * 2
        results: list[Mapping[str, float]] = list(
            results_in_order(connection, _measure, calls, threads=processors, ahead=ahead, arrived=lambda _: None)
        )
    return results


def _measure(order: tuple[bytes, int, int], task: Task) -> Mapping[str, float]:
    """On a worker: the figures of one candidate. A process keeps the models of its last search open."""
    key, threads, activation_bits = order
    with using(threads=threads, activation_bits=activation_bits):
        if key not in _measurers:
            _measurers.clear()
            _measurers[key] = Measurer(pickle.loads(key))
        recipe, share = task
        return _measurers[key].figures(recipe, share)
