"""Reports the progress of cluster nodes."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

from lbrx.base.system import format_bytes

if TYPE_CHECKING:
    from lbrx.cluster.options import ClusterProgress

_EVENTS_PER_SECOND = 2


class ClusterReporter:
    """Report node activity: JSON events, or one line at the start and one per node at the end."""

    def __init__(self, *, as_json: bool, is_quiet: bool) -> None:
        self._as_json = as_json
        self._is_quiet = is_quiet
        self._last: ClusterProgress | None = None
        self._next_event = 0.0

    def __call__(self, state: ClusterProgress) -> None:
        is_first, self._last = self._last is None, state
        now = time.monotonic()
        is_over = state.waiting_tasks == 0 and state.running_tasks == 0
        if self._as_json and (now >= self._next_event or is_over):
            self._next_event = now + 1 / _EVENTS_PER_SECOND
            _print_event(state)
        elif is_first and not self._is_quiet and not self._as_json and state.dashboard is not None:
            print(f"cluster: {state.dashboard}", file=sys.stderr)

    def done(self) -> None:
        """Print a summary of each node."""
        if self._last is None or self._as_json or self._is_quiet:
            return
        for node in self._last.nodes:
            rate = format_bytes(int(node.bytes_per_second))
            print(
                f"{node.node}: {node.tasks} tasks, {format_bytes(node.done_bytes)} ({rate}/s), "
                f"{format_bytes(node.memory_bytes)} memory",
                file=sys.stderr,
            )


def _print_event(state: ClusterProgress) -> None:
    nodes = [
        {
            "node": node.node,
            "tasks": node.tasks,
            "done_bytes": node.done_bytes,
            "bytes_per_second": round(node.bytes_per_second),
            "memory_bytes": node.memory_bytes,
        }
        for node in state.nodes
    ]
    event = {
        "event": "cluster",
        "nodes": nodes,
        "waiting_tasks": state.waiting_tasks,
        "running_tasks": state.running_tasks,
        "failures": state.failures,
        "resent_tasks": state.resent_tasks,
        "dashboard": state.dashboard,
    }
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()
