"""A merge on a Ray cluster of one node against the same merge on this machine's threads.

``python -m benchmarks.cluster``. Both sides plan and run the same recipe with the same number of threads and without
flushing to disk, into a directory that does not exist yet. The cluster is started and connected before the clock runs,
and each side has run once, so that kernels are compiled and workers are there; what that run wrote is compared. Turns
alternate, and the best of three counts; processor time is compared too, because it depends less on what else the
machine does. It is that of the driver and of the tasks; Ray's own processes are not in it.
"""

from __future__ import annotations

import contextlib
import filecmp
import gc
import math
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness import Figure
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
    """A merge into a directory of its own, and the best times of its turns."""

    source: PlanSource
    cluster: ClusterOptions | None = None
    states: list[ClusterProgress] = field(default_factory=list)
    seconds: float = math.inf
    processor_seconds: float = math.inf

    @property
    def out(self) -> Path:
        return Path(self.source.arguments[1])

    def merge(self) -> None:
        """Run once, untimed."""
        shutil.rmtree(self.out, ignore_errors=True)
        execute(self.source.build(), sync=False, cluster=self.cluster)

    def turn(self) -> None:
        """Run once more; only what a command does is timed, not the removal of what the last turn wrote."""
        shutil.rmtree(self.out)
        gc.collect()
        time.sleep(0.1)
        started, processor_started = time.perf_counter(), time.process_time()
        execute(self.source.build(), sync=False, cluster=self.cluster)
        seconds, processor_seconds = time.perf_counter() - started, time.process_time() - processor_started
        if self.states:
            processor_seconds += sum(node.processor_seconds for node in self.states[-1].nodes)
        self.seconds = min(self.seconds, seconds)
        self.processor_seconds = min(self.processor_seconds, processor_seconds)


def _against_threads(method: str, recipe: str) -> Iterator[Figure]:
    threads = _Side(PlanSource.merge(recipe, f"{method}-threads"))
    cluster = _Side(PlanSource.merge(recipe, f"{method}-cluster"))
    states = cluster.states
    cluster.cluster = ClusterOptions("auto", cluster.source, system.cpu_count(), progress=states.append)
    for side in (threads, cluster):
        side.merge()
    _check_alike(threads.out, cluster.out)
    for _ in range(TURNS):
        threads.turn()
        cluster.turn()
    own, other = cluster.seconds, threads.seconds
    (node,) = states[-1].nodes
    detail = f"{own:.2f} s against {other:.2f} s on threads; {node.tasks} tasks"
    yield Figure("cluster", f"{method}: threads / cluster", other / own, 1 / 1.15, detail)
    used, other_used = cluster.processor_seconds, threads.processor_seconds
    detail = f"{used:.2f} s against {other_used:.2f} s on threads"
    yield Figure("cluster", f"{method}: processor time, threads / cluster", other_used / used, 1 / 1.15, detail)
    peak = max(seen.memory_bytes for state in states for seen in state.nodes)
    detail = f"{peak / 1e6:.0f} MB of {MEMORY_LIMIT_BYTES / 1e6:.0f} MB"
    yield Figure("cluster", f"{method}: memory of a worker", MEMORY_LIMIT_BYTES / peak, 1, detail)
    for side in (threads, cluster):
        shutil.rmtree(side.out)


def _check_alike(one: Path, other: Path) -> None:
    names = sorted(path.name for path in one.iterdir())
    _, different, missing = filecmp.cmpfiles(one, other, names, shallow=False)
    if different or missing:
        raise SystemExit(f"{one} and {other} differ in {', '.join([*different, *missing])}; expected the same bytes")


if __name__ == "__main__":
    for figure in run():
        print(f"{figure.name:<48} {figure.ratio:6.2f} (target {figure.target:.2f})  {figure.detail}")
