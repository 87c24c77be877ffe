"""The simulation of clusters: it agrees with the cost model where that holds, and shows what that leaves out."""

from __future__ import annotations

import doctest
import sys
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

_PATH = Path(__file__).parents[2] / "examples" / "cluster_simulation.py"
_SPEC = spec_from_file_location("cluster_simulation", _PATH)
assert _SPEC is not None
assert _SPEC.loader is not None
simulation = sys.modules["cluster_simulation"] = module_from_spec(_SPEC)
_SPEC.loader.exec_module(simulation)
Machines, Work, simulate = simulation.Machines, simulation.Work, simulation.simulate
estimated_seconds = simulation.estimated_seconds

QUIET = Machines(10, slow_share=0.0, failure_hours=1e12)


@pytest.mark.parametrize("nodes", [1, 10, 100])
def test_without_faults_it_is_the_cost_model(nodes: int) -> None:
    machines = replace(QUIET, nodes=nodes)
    work = Work(1e12)
    assert simulate(work, machines).seconds == pytest.approx(estimated_seconds(work, machines), rel=0.15)


def test_bytes_by_bandwidth() -> None:
    work = Work(1e12, models=2, reads=1)
    assert work.moved_bytes == 6e12
    ten = replace(QUIET, node_bandwidth=1e9, storage_bandwidth=1e12, start_seconds=0.0)
    assert estimated_seconds(work, ten) == pytest.approx(600)
    assert ten.limit == "network"
    assert replace(ten, compute_bandwidth=5e8).limit == "processors"


def test_more_nodes_help_until_the_storage_is_the_limit() -> None:
    work = Work(1e12)
    times = [simulate(work, replace(QUIET, nodes=nodes)).seconds for nodes in (1, 10, 60, 1000)]
    assert times[0] > 8 * times[1] > 8 * times[2]
    assert replace(QUIET, nodes=1000).limit == "storage"
    assert times[3] >= work.moved_bytes / QUIET.storage_bandwidth


def test_slow_nodes_hold_the_end_unless_their_tasks_are_sent_again() -> None:
    work, machines = Work(1e12), replace(QUIET, nodes=20, slow_share=0.2, slow_times=30.0)
    without = simulate(work, machines, seed=1, resends=False)
    resent = simulate(work, machines, seed=1)
    assert resent.resent_tasks > 0
    assert without.resent_tasks == 0
    assert resent.seconds < 0.95 * without.seconds


def test_dying_nodes_cost_only_their_tasks() -> None:
    work = Work(1e13)
    machines = replace(QUIET, nodes=50, failure_hours=2.0)
    quiet, failing = simulate(work, replace(machines, failure_hours=1e12)), simulate(work, machines)
    assert failing.dead_nodes > 5
    assert failing.failed_tasks >= failing.dead_nodes
    assert quiet.seconds < failing.seconds < 1.5 * quiet.seconds


def test_the_same_seed_gives_the_same_run() -> None:
    machines = Machines(40, slow_share=0.2, failure_hours=5.0)
    assert simulate(Work(1e12), machines, seed=3) == simulate(Work(1e12), machines, seed=3)
    assert simulate(Work(1e12), machines, seed=3) != simulate(Work(1e12), machines, seed=4)


def test_examples_in_docstrings() -> None:
    assert doctest.testmod(simulation).failed == 0
