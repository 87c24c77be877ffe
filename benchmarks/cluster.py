"""A merge on a Ray cluster of one node against the same merge on this machine's threads.

``python -m benchmarks.cluster``. Both sides plan and run the same recipe with the same number of threads and without
flushing to disk, into the same directory, which is removed before each turn: the memory of its pages was in use just
before, for both. The cluster is started and connected before the clock runs, and each side has run once, so that
kernels are compiled and workers are there; what those runs wrote is compared. Sides take turns, in changing order,
and the best of eight counts; processor time is compared too, because it depends less on what else the machine does.
It is that of the driver and of the tasks; Ray's own processes are not in it.
"""

from __future__ import annotations

import contextlib
import filecmp
import gc
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import lbrx
from benchmarks.harness import Figure
from benchmarks.models import LAYERS, make_model
from lbrx.base import system
from lbrx.cluster import ClusterOptions
from lbrx.cluster.options import ClusterProgress
from lbrx.files.output.options import RunKeywords

TURNS = 8
_OUT = "merged"
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
        with contextlib.chdir(work):
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


@dataclass
class _Side:
    """A merge into a directory, and the times of its turns."""

    recipe: str
    cluster: ClusterOptions | None = None
    states: list[ClusterProgress] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    processor_seconds: list[float] = field(default_factory=list)

    def turn(self) -> None:
        """Run once more; only what a command does is timed, not the removal of what the last turn wrote."""
        shutil.rmtree(_OUT, ignore_errors=True)
        os.sync()  # or the system writes what the other side has left while this one is timed
        gc.collect()
        time.sleep(0.1)
        started, processor_started = time.perf_counter(), time.process_time()
        lbrx.merge(self.recipe, _OUT, sync=False, **_cluster(self.cluster))
        seconds, processor_seconds = time.perf_counter() - started, time.process_time() - processor_started
        if self.states:
            processor_seconds += sum(node.processor_seconds for node in self.states[-1].nodes)
        self.seconds.append(seconds)
        self.processor_seconds.append(processor_seconds)


def _cluster(options: ClusterOptions | None) -> RunKeywords:
    """A cluster whose tasks have all processors."""
    return {} if options is None else {"cluster": options, "threads": system.cpu_count()}


def _against_threads(method: str, recipe: str) -> Iterator[Figure]:
    _check_alike(recipe)
    states: list[ClusterProgress] = []
    threads, cluster = _Side(recipe), _Side(recipe, ClusterOptions("auto", progress=states.append), states)
    for number in range(TURNS):
        for side in (threads, cluster) if number % 2 else (cluster, threads):
            side.turn()
    own, other = min(cluster.seconds), min(threads.seconds)
    (node,) = states[-1].nodes
    detail = f"{own:.2f} s against {other:.2f} s on threads; {node.tasks} tasks"
    yield Figure("cluster", f"{method}: threads / cluster", other / own, 1 / 1.15, detail)
    used, other_used = min(cluster.processor_seconds), min(threads.processor_seconds)
    detail = f"{used:.2f} s against {other_used:.2f} s on threads"
    yield Figure("cluster", f"{method}: processor time, threads / cluster", other_used / used, 1 / 1.15, detail)
    peak = max(seen.memory_bytes for state in states for seen in state.nodes)
    detail = f"{peak / 1e6:.0f} MB of {MEMORY_LIMIT_BYTES / 1e6:.0f} MB"
    yield Figure("cluster", f"{method}: memory of a worker", MEMORY_LIMIT_BYTES / peak, 1, detail)
    shutil.rmtree(_OUT)


def _check_alike(recipe: str) -> None:
    """Merge once on each side; this also compiles kernels and starts workers."""
    one, other = Path("of-threads"), Path("of-the-cluster")
    lbrx.merge(recipe, one, sync=False)
    lbrx.merge(recipe, other, sync=False, **_cluster(ClusterOptions("auto")))
    names = sorted(path.name for path in one.iterdir())
    _, different, missing = filecmp.cmpfiles(one, other, names, shallow=False)
    if different or missing:
        raise SystemExit(f"{one} and {other} differ in {', '.join([*different, *missing])}; expected the same bytes")
    for directory in (one, other):
        shutil.rmtree(directory)


if __name__ == "__main__":
    for figure in run():
        print(f"{figure.name:<48} {figure.ratio:6.2f} (target {figure.target:.2f})  {figure.detail}")
