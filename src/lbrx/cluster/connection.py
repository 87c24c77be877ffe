"""The border to Ray: connecting, what nodes there are, and its errors turned into ours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.cluster.options import MAX_THREADS_PER_TASK, ClusterError


@dataclass(frozen=True, slots=True)
class Node:
    """A node that is alive: its name for people, and its processors."""

    key: str
    name: str
    processors: int


def import_ray() -> Any:
    """The module ``ray``, or an error that says how to get it."""
    try:
        import ray
    except ImportError as error:
        raise ClusterError("--cluster needs Ray, which is not installed; run: pip install 'lbrx[cluster]'") from error
    return ray


@dataclass(frozen=True, slots=True)
class Connection:
    """The module ``ray``, connected, and the URL of the cluster's dashboard if it has one."""

    ray: Any
    dashboard: str | None


@contextmanager
def connected(address: str) -> Iterator[Connection]:
    """A connection to the cluster at an address; one that was there before is taken, and stays."""
    ray = import_ray()
    was_connected = ray.is_initialized()
    try:
        context = ray.init(
            address=address,
            ignore_reinit_error=True,
            log_to_driver=False,
            logging_level="ERROR",
            configure_logging=False,
        )
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ClusterError(
            f"no Ray cluster at {address!r}: {reason}; expected one that runs (ray start --head), or its address"
        ) from error
    url = context.dashboard_url
    try:
        yield Connection(ray, f"http://{url}" if url else None)
    finally:
        if not was_connected:
            ray.shutdown()


def nodes_of(ray: Any) -> list[Node]:
    """The nodes that are alive and have processors."""
    nodes = [
        Node(
            node["NodeID"], f"{node['NodeManagerHostname']}/{node['NodeID'][:6]}", int(node["Resources"].get("CPU", 0))
        )
        for node in ray.nodes()
        if node["Alive"]
    ]
    return [node for node in nodes if node.processors > 0]


def task_threads(nodes: Sequence[Node], wanted: int | None) -> int:
    """The processors of a task: as many as are wanted, or four, or what the smallest node has.

    >>> task_threads([Node("a", "a", 2), Node("b", "b", 8)], None)
    2
    """
    if not nodes:
        raise ClusterError("the Ray cluster has no node with processors; expected at least one")
    fewest = min(node.processors for node in nodes)
    threads = wanted or min(MAX_THREADS_PER_TASK, fewest)
    if fewest < threads:
        raise ClusterError(f"a task wants {threads} processors, but a node has {fewest}; give fewer threads")
    return threads


def worker_count(nodes: Sequence[Node], threads: int) -> int:
    """How many tasks of so many processors run at once.

    >>> worker_count([Node("a", "a", 2), Node("b", "b", 8)], 2)
    5
    """
    return sum(node.processors // threads for node in nodes)
