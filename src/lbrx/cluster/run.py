"""A run on a cluster: tasks are sent out, lost ones again, slow ones twice; what comes back is journalled here."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import field
from functools import partial
from statistics import median
from typing import Any

from lbrx.base.build import build
from lbrx.base.fast_dataclass import dataclass
from lbrx.base.system import parse_bytes
from lbrx.cluster.calls import failed_too_often, reason
from lbrx.cluster.connection import Connection, Node, connected, import_ray, nodes_of, task_threads, worker_count
from lbrx.cluster.options import (
    MAX_FAILURES,
    WORKER_MEMORY_BYTES,
    ClusterError,
    ClusterOptions,
    ClusterProgress,
    NodeProgress,
)
from lbrx.cluster.same_build import check_build
from lbrx.cluster.tasks import Task, group_slots, task_size, whole_files
from lbrx.cluster.worker import Order, TaskReport, layout_digest, perform
from lbrx.cluster.worker_memory import explaining_memory_errors
from lbrx.errors import LbrxError
from lbrx.files.formats.header import FileLayout
from lbrx.files.output.plan import OutputPlan
from lbrx.files.output.run import Run
from lbrx.files.output.upload import RemoteStaging, uploaded_before

_POLL_SECONDS = 0.5
_NODES_SECONDS = 2.0
_SLOW_FACTOR = 3.0  # a task that takes so many times the usual time is sent once more when nothing else waits
_SLOW_SECONDS = 5.0
_RECENT_TASKS = 100


@dataclass
class _Sent:
    """A task on its way."""

    task: Task
    since: float = field(default_factory=time.monotonic)


def cluster_runner(cluster: str | ClusterOptions, plan_call: partial[OutputPlan]) -> Callable[..., ClusterRun]:
    """The ``runner`` of `lbrx.files.output.run.execute` on a cluster, whose workers make the plan by the same call."""
    import_ray()
    chosen = ClusterOptions(cluster) if isinstance(cluster, str) else cluster
    return partial(ClusterRun, chosen, plan_call, os.getcwd())


class ClusterRun(Run):
    """A run whose tensors are computed by the workers of a cluster, into files that all of them can reach.

    If the output is in a bucket, a worker makes a whole file where it is, and uploads it.
    """

    def __init__(
        self, cluster: ClusterOptions, plan_call: partial[OutputPlan], directory: str, *arguments: Any
    ) -> None:
        super().__init__(*arguments)
        self.cluster, self.plan_call, self.directory = cluster, plan_call, directory

    def run(self) -> None:
        is_shared = not isinstance(self.staging, RemoteStaging)
        for layout in self.plan.layouts:
            if isinstance(self.staging, RemoteStaging):
                if not uploaded_before(self, self.staging, layout):
                    self._forget(layout)
                continue
            with self.opened(layout) as descriptor:
                self.check_finished(layout, descriptor)
        with connected(self.cluster.address) as connection:
            _Dispatch(self, connection).run()
        if self.options.sync and is_shared:
            for layout in self.plan.layouts:
                self.flush(layout)

    def _forget(self, layout: FileLayout) -> None:
        """A file that is not uploaded is made anew as a whole."""
        for slot in layout.slots:
            self.journal.entries.pop(slot.name, None)


class _Dispatch:
    def __init__(self, run: ClusterRun, connection: Connection) -> None:
        ray = connection.ray
        self._run = run
        self._ray = ray
        self._options = run.cluster
        self._known_nodes: list[Node] = []
        self._nodes_until = 0.0
        nodes = self._nodes()
        self._threads = task_threads(nodes, run.options.threads)
        waiting = [slot for layout in run.plan.layouts for slot in layout.slots if slot.name not in run.journal.entries]
        size = self._options.task_bytes or task_size(
            sum(slot.nbytes for slot in waiting), worker_count(nodes, self._threads)
        )
        self._bucket = run.staging if isinstance(run.staging, RemoteStaging) else None
        done, memory = frozenset(run.journal.entries), run.options.memory
        if self._bucket is None:
            self._tasks = group_slots(run.plan.layouts, done, size)
        else:
            self._tasks = whole_files(run.plan.layouts, done)
            self._bucket.begin_uploads()
        self._order = ray.put(
            Order(
                uuid.uuid4().hex,
                run.plan_call,
                run.directory,
                layout_digest(run.plan),
                run.staging.partial.resolve(),
                self._threads,
                WORKER_MEMORY_BYTES if memory is None else parse_bytes(memory),
                run.options.sync,
                socket.gethostname(),
                None if self._bucket is None else self._bucket.remote,
            )
        )
        self._remote = ray.remote(max_retries=0, num_cpus=self._threads, scheduling_strategy="SPREAD")(_perform)
        self._waiting = list(reversed(self._tasks))
        self._sent: dict[Any, _Sent] = {}
        self._done: set[int] = set()
        self._failures: Counter[int] = Counter()
        self._last_failure: str | None = None
        self._resent: set[int] = set()
        self._seconds: list[float] = []
        self._node_states: dict[str, NodeProgress] = {}
        self._dashboard = connection.dashboard

    # -- sending --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        try:
            self._report()
            while len(self._done) < len(self._tasks):
                self._send()
                for reference in self._ready():
                    self._take(self._sent.pop(reference).task, reference)
        finally:
            for reference in self._sent:  # copies of finished tasks, or leftovers of an error
                self._ray.cancel(reference)

    def _ready(self) -> list[Any]:
        """What has come back; waits a moment if there is nothing."""
        ready, others = self._ray.wait(list(self._sent), num_returns=1, timeout=_POLL_SECONDS)
        more = self._ray.wait(others, num_returns=len(others), timeout=0)[0] if ready and others else []
        return [*ready, *more]

    def _nodes(self) -> list[Node]:
        """The nodes that are alive, asked for now and then: a large cluster has a long answer."""
        now = time.monotonic()
        if now >= self._nodes_until:
            self._known_nodes = nodes_of(self._ray)
            self._nodes_until = now + _NODES_SECONDS
        if not self._known_nodes:
            raise ClusterError("the Ray cluster has no node with processors; expected at least one")
        return self._known_nodes

    def _send(self) -> None:
        """Keep every worker busy, and one task more in reach of each node."""
        nodes = self._nodes()
        limit = worker_count(nodes, self._threads) + len(nodes)
        while self._waiting and len(self._sent) < limit:
            self._submit(self._waiting.pop())
        if not self._waiting:
            for task in self._slow_tasks()[: max(limit - len(self._sent), 0)]:
                self._resent.add(task.number)
                self._submit(task)

    def _submit(self, task: Task) -> None:
        reference = self._remote.remote(build(), self._order, task.number, task.layout_index, task.slots)
        self._sent[reference] = _Sent(task)

    def _slow_tasks(self) -> list[Task]:
        if not self._seconds:
            return []
        limit = max(_SLOW_SECONDS, _SLOW_FACTOR * median(self._seconds[-_RECENT_TASKS:]))
        now = time.monotonic()
        late = [sent.task for sent in self._sent.values() if now - sent.since > limit]
        return [task for task in late if task.number not in self._resent and task.number not in self._done]

    # -- taking ---------------------------------------------------------------------------------------------------

    def _take(self, task: Task, reference: Any) -> None:
        try:
            node, report = self._ray.get(reference)
        except (self._ray.exceptions.RayError, LbrxError) as error:
            self._failed(task, error)
            return
        if task.number in self._done:
            return
        self._done.add(task.number)
        self._seconds.append(report.seconds)
        self._count(node, task, report)
        if self._bucket is not None and report.uploaded is not None:
            self._bucket.note_uploaded(self._run.plan.layouts[task.layout_index].name, report.uploaded)
        for slot, entry in zip(task.slots, report.entries, strict=True):
            self._run.finish([slot], [entry])
        self._report()

    def _failed(self, task: Task, error: Exception) -> None:
        """Send a task again whose worker died or which raised an error, unless it did so too often."""
        if task.number in self._done or any(sent.task.number == task.number for sent in self._sent.values()):
            return  # its copy did it, or may still do it
        self._nodes_until = 0.0  # it may be a node that died
        self._failures[task.number] += 1
        self._last_failure = reason(error)
        if self._failures[task.number] >= MAX_FAILURES:
            names = " to ".join(dict.fromkeys(repr(slot.name) for slot in (task.slots[0], task.slots[-1])))
            raise failed_too_often(f"tensors {names}", error) from error
        self._waiting.append(task)

    def _count(self, node: str, task: Task, report: TaskReport) -> None:
        name = f"{report.host}/{node[:6]}"
        before = self._node_states.get(name, NodeProgress(name, 0, 0, 0.0, 0.0, 0))
        self._node_states[name] = NodeProgress(
            name,
            before.tasks + 1,
            before.done_bytes + task.nbytes,
            before.busy_seconds + report.seconds,
            before.processor_seconds + report.processor_seconds,
            max(before.memory_bytes, report.memory_bytes),
        )

    def _report(self) -> None:
        if self._options.progress is not None:
            states = tuple(self._node_states[name] for name in sorted(self._node_states))
            self._options.progress(
                ClusterProgress(
                    states,
                    len(self._waiting),
                    len(self._sent),
                    sum(self._failures.values()),
                    len(self._resent),
                    self._dashboard,
                    self._last_failure,
                )
            )


def _perform(expected_build: str, order: Order, number: int, layout_index: int, slots: Any) -> tuple[str, TaskReport]:
    """The task itself: ``perform``, and the node that it ran on."""
    import ray

    check_build(expected_build)
    with explaining_memory_errors():
        return ray.get_runtime_context().get_node_id(), perform(order, number, layout_index, slots)
