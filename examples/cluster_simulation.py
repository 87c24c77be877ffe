"""How long a merge takes on a cluster that is not here: a cost model, and a simulation of its tasks one by one.

The model counts bytes and divides them by bandwidths. The simulation adds what it cannot: nodes that are slow or die,
tasks that are sent twice, and the driver that hands out one task after the other, by the same rules as a real run.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from statistics import median

import numpy as np

from lbrx.cluster.tasks import task_size

SLOW_FACTOR = 3.0  # as in a real run
MIN_SLOW_SECONDS = 5.0
_SPREAD = 0.1  # tasks take up to so much longer than the fastest
_RECENT = 50  # finished tasks that define the usual time


@dataclass(frozen=True, slots=True)
class Work:
    """A merge: ``models`` of ``parameters`` are read ``reads`` times each, and one is written."""

    parameters: float
    models: int = 3
    bytes_per_parameter: float = 2.0
    reads: float = 1.0

    @property
    def written_bytes(self) -> float:
        return self.parameters * self.bytes_per_parameter

    @property
    def moved_bytes(self) -> float:
        """Read and written."""
        return self.written_bytes * (self.models * self.reads + 1)


@dataclass(frozen=True, slots=True)
class Machines:
    """A cluster. Bandwidths are bytes per second: of a node's way to the storage, of the storage as a whole, and of
    the bytes that a node's processors can take in and give out."""

    nodes: int
    workers_per_node: int = 4
    node_bandwidth: float = 1.5e9
    storage_bandwidth: float = 100e9
    compute_bandwidth: float = 8e9
    start_seconds: float = 5.0  # of a worker: its plan and its kernels
    dispatch_seconds: float = 0.002  # of the driver, for each task
    slow_share: float = 0.02  # of the nodes
    slow_times: float = 4.0  # as long as the others
    failure_hours: float = 1000.0  # of one node, on average, until it dies
    replacement_seconds: float = 180.0

    @property
    def workers(self) -> int:
        return self.nodes * self.workers_per_node

    @property
    def bandwidth(self) -> float:
        """What all nodes move at the most, together."""
        return min(self.nodes * min(self.node_bandwidth, self.compute_bandwidth), self.storage_bandwidth)

    @property
    def limit(self) -> str:
        """What holds the cluster back: ``"storage"``, ``"network"`` or ``"processors"``."""
        if self.bandwidth == self.storage_bandwidth:
            return "storage"
        return "network" if self.node_bandwidth <= self.compute_bandwidth else "processors"


def estimated_seconds(work: Work, machines: Machines) -> float:
    """The cost model: bytes by bandwidth, the start, and the driver if it cannot hand out tasks as fast as they end.

    >>> round(estimated_seconds(Work(1e12), Machines(10)))
    538
    """
    tasks = work.written_bytes / _task_bytes(work, machines)
    streaming = work.moved_bytes / machines.bandwidth
    return machines.start_seconds + max(streaming, tasks * machines.dispatch_seconds)


def _task_bytes(work: Work, machines: Machines) -> int:
    return task_size(int(work.written_bytes), machines.workers)


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """What a simulated run came to. ``busy_share`` is the part of the workers' time in which they did tasks."""

    seconds: float
    tasks: int
    failed_tasks: int
    resent_tasks: int
    dead_nodes: int
    busy_share: float


def simulate(work: Work, machines: Machines, *, seed: int = 0, resends: bool = True) -> SimulatedRun:
    """Run the tasks of a merge on simulated nodes; the same seed gives the same run.

    >>> simulate(Work(1e11), Machines(10, slow_share=0, failure_hours=1e9)).failed_tasks
    0
    """
    return _Simulation(work, machines, seed, resends).run()


class _Simulation:
    """Events in the order of time: a worker is free, a task ends. Ties go to the lower number."""

    def __init__(self, work: Work, machines: Machines, seed: int, resends: bool) -> None:
        self._machines = machines
        self._resends = resends
        task_bytes = _task_bytes(work, machines)
        self._tasks = max(int(-(-work.written_bytes // task_bytes)), 1)
        moved = work.moved_bytes / self._tasks
        self._task_seconds = moved / (machines.bandwidth / machines.workers)
        generator = np.random.default_rng(seed)
        slow = generator.random(machines.nodes) < machines.slow_share
        self._times: list[float] = np.where(slow, machines.slow_times, 1.0).tolist()
        self._deaths: list[float] = generator.exponential(machines.failure_hours * 3600, machines.nodes).tolist()
        self._generator = generator
        self._free = [
            (machines.start_seconds, worker, worker // machines.workers_per_node) for worker in range(machines.workers)
        ]
        self._waiting = list(range(self._tasks))[::-1]
        self._ends: list[tuple[float, int, int, int, float, bool]] = []
        self._running: dict[int, float] = {}  # tasks that were sent once, by when: the oldest first
        self._durations: list[float] = []
        self._usual_seconds = 0.0
        self._resent: set[int] = set()
        self._done: set[int] = set()
        self._driver_free = 0.0
        self._busy = 0.0
        self._failed = self._dead = 0

    def run(self) -> SimulatedRun:
        now = 0.0
        while len(self._done) < self._tasks:
            self._hand_out(now)
            now = self._next_time(now)
            self._finish(now)
        share = self._busy / max(now * self._machines.workers, 1e-9)
        return SimulatedRun(now, self._tasks, self._failed, len(self._resent), self._dead, min(share, 1.0))

    def _hand_out(self, now: float) -> None:
        while self._free and self._free[0][0] <= now:
            task = self._next_task(now)
            if task is None:
                return
            _, worker, node = heapq.heappop(self._free)
            self._driver_free = max(self._driver_free, now) + self._machines.dispatch_seconds
            start = self._driver_free
            seconds = self._task_seconds * self._times[node] * (1 + _SPREAD * float(self._generator.random()))
            if task not in self._resent:
                self._running[task] = start
            end = start + seconds
            if self._deaths[node] < end:
                self._die(task, worker, node, max(self._deaths[node], start))
            else:
                heapq.heappush(self._ends, (end, task, worker, node, seconds, True))

    def _die(self, task: int, worker: int, node: int, at: float) -> None:
        """A node dies under a task; a new one takes its place later. Its other workers find out at their own tasks."""
        heapq.heappush(self._ends, (at, task, worker, node, 0.0, False))

    def _next_task(self, now: float) -> int | None:
        if self._waiting:
            return self._waiting.pop()
        due = self._due()
        if due is None or due > now:
            return None
        task = next(iter(self._running))
        del self._running[task]
        self._resent.add(task)
        return task

    def _due(self) -> float | None:
        """When the task that runs longest is sent once more; None if there is none, or nothing to compare it with."""
        if not self._resends or not self._durations or not self._running:
            return None
        return next(iter(self._running.values())) + max(MIN_SLOW_SECONDS, SLOW_FACTOR * self._usual_seconds)

    def _next_time(self, now: float) -> float:
        times = [self._ends[0][0]] if self._ends else []
        if self._free and (self._waiting or self._free[0][0] > now):
            times.append(max(self._free[0][0], now))
        due = self._due()
        if not self._waiting and self._free and due is not None:
            times.append(max(due, now, self._free[0][0]))
        return min(times)

    def _finish(self, now: float) -> None:
        while self._ends and self._ends[0][0] <= now:
            at, task, worker, node, seconds, is_whole = heapq.heappop(self._ends)
            if not is_whole:
                self._lose(task, worker, node, at)
                continue
            self._busy += seconds
            heapq.heappush(self._free, (at, worker, node))
            if task not in self._done:
                self._done.add(task)
                self._running.pop(task, None)
                self._durations.append(seconds)
                if len(self._durations) % _RECENT == 1:
                    self._usual_seconds = median(self._durations[-_RECENT:])

    def _lose(self, task: int, worker: int, node: int, at: float) -> None:
        self._failed += 1
        if self._deaths[node] <= at:
            self._dead += 1
            self._deaths[node] = at + float(self._generator.exponential(self._machines.failure_hours * 3600))
        heapq.heappush(self._free, (at + self._machines.replacement_seconds, worker, node))
        if task not in self._done and task not in self._waiting:
            self._running.pop(task, None)
            self._resent.discard(task)
            self._waiting.append(task)
