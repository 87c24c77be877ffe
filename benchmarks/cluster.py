"""A merge on a Ray cluster of one node against the same merge on this machine's threads.

``python -m benchmarks.cluster``. The cluster is started and connected before the clock runs. Turns alternate, and the
best of each counts; processor time is compared too, because it does not depend on what else the machine does.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness import Figure, side_by_side
from benchmarks.models import LAYERS, make_model
from lbrx import system
from lbrx.cluster import ClusterOptions, PlanSource
from lbrx.cluster.options import ClusterProgress
from lbrx.execute import execute

TURNS = 3
MEMORY_LIMIT_BYTES = 400_000_000
RECIPES = {
    "linear": (
        "{merge_method: linear, models: [{model: a, parameters: {weight: 3}}, {model: b, parameters: {weight: 1}}]}"
    ),
    "ties": (
        "{merge_method: ties, base_model: base, parameters: {density: 0.5, weight: 0.5}, "
        "models: [{model: a}, {model: b}]}"
    ),
}


def run() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(dir=os.environ.get("LBRX_BENCH_DIR")) as directory, _one_node():
        work = Path(directory)
        for seed, name in enumerate(("base", "a", "b")):
            make_model(work / name, LAYERS, seed)
        os.chdir(work)
        for method, recipe in RECIPES.items():
            yield from _against_threads(method, recipe)


@contextmanager
def _one_node() -> Iterator[None]:
    import ray

    ray.init(num_cpus=system.cpu_count(), include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        yield
    finally:
        ray.shutdown()


def _against_threads(method: str, recipe: str) -> Iterator[Figure]:
    states: list[ClusterProgress] = []
    local, clustered = PlanSource.merge(recipe, "local"), PlanSource.merge(recipe, "clustered")

    processor_seconds: dict[str, list[float]] = {"threads": [], "cluster": []}

    def on_threads() -> None:
        started = time.process_time()
        execute(local.build(), sync=False)
        processor_seconds["threads"].append(time.process_time() - started)
        shutil.rmtree("local")

    def on_cluster() -> None:
        started = time.process_time()
        execute(clustered.build(), sync=False, cluster=ClusterOptions("auto", clustered, progress=states.append))
        of_workers = sum(node.processor_seconds for node in states[-1].nodes)
        processor_seconds["cluster"].append(time.process_time() - started + of_workers)
        shutil.rmtree("clustered")

    own, other = side_by_side(on_cluster, on_threads, TURNS)
    (node,) = states[-1].nodes
    detail = f"{own:.2f} s against {other:.2f} s on threads; {node.tasks} tasks"
    yield Figure("cluster", f"{method}: threads / cluster", other / own, 1 / 1.15, detail)
    used, other_used = (min(processor_seconds[which]) for which in ("cluster", "threads"))
    detail = f"{used:.2f} s against {other_used:.2f} s on threads"
    yield Figure("cluster", f"{method}: processor time, threads / cluster", other_used / used, 1 / 1.15, detail)
    peak = max(seen.memory_bytes for state in states for seen in state.nodes)
    detail = f"{peak / 1e6:.0f} MB of {MEMORY_LIMIT_BYTES / 1e6:.0f} MB"
    yield Figure("cluster", f"{method}: memory of a worker", MEMORY_LIMIT_BYTES / peak, 1, detail)


if __name__ == "__main__":
    for figure in run():
        print(f"{figure.name:<48} {figure.ratio:6.2f} (target {figure.target:.2f})  {figure.detail}")
