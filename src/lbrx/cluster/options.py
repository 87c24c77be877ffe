"""The options of a run on a cluster, and what can go wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import LbrxError

MAX_THREADS_PER_TASK = 4
WORKER_MEMORY_BYTES = 192 << 20
MAX_FAILURES = 3


class ClusterError(LbrxError):
    """A cluster cannot be reached, or a task failed on it too often."""


class WorkerMemoryError(ClusterError):
    """A worker could not get the memory that its task needs."""


@dataclass(frozen=True, slots=True)
class NodeProgress:
    """What a node has done: its tasks, the bytes it wrote, how long it took, and the most memory of a worker."""

    node: str
    tasks: int
    done_bytes: int
    busy_seconds: float
    processor_seconds: float
    memory_bytes: int

    @property
    def bytes_per_second(self) -> float:
        """Of its workers together, while they worked."""
        return self.done_bytes / max(self.busy_seconds, 1e-9)


@dataclass(frozen=True, slots=True)
class ClusterProgress:
    """The state of a run on a cluster: ``dashboard`` is its URL, ``last_failure`` why a task failed last, or None."""

    nodes: tuple[NodeProgress, ...]
    waiting_tasks: int
    running_tasks: int
    failures: int
    resent_tasks: int
    dashboard: str | None
    last_failure: str | None = None


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Where the cluster is (``"auto"`` for the one of this machine), and what is reported of its nodes.

    A task writes about ``task_bytes`` (by default an eighth of what a worker has to do, between 16 MiB and 512 MiB).
    Its ``threads`` (by default four, or what the smallest node has) and ``memory`` are options of the job.
    """

    address: str
    task_bytes: int | None = None
    progress: Callable[[ClusterProgress], Any] | None = None

    def __str__(self) -> str:
        return self.address
