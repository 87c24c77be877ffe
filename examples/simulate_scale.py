"""How long merges of very large models would take on 1 to 1,000 nodes: modelled, not measured.

    python examples/simulate_scale.py [--storage-gbs 100] [--node-gbs 1.5] [--models 3]

Every line is one simulated run (see cluster_simulation.py) beside what the cost model says.
"""

from __future__ import annotations

import argparse

from cluster_simulation import Machines, Work, estimated_seconds, simulate

PARAMETERS = {"1 T": 1e12, "10 T": 1e13}
NODES = (1, 3, 10, 30, 100, 300, 1000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--storage-gbs", type=float, default=100.0, help="GB/s of the whole storage")
    parser.add_argument("--node-gbs", type=float, default=1.5, help="GB/s between a node and the storage")
    parser.add_argument("--models", type=int, default=3, help="models that are read, the base included")
    options = parser.parse_args()
    print(f"{'model':>6} {'nodes':>6} {'model says':>11} {'simulated':>11} {'busy':>6} {'lost':>5} {'twice':>6}  limit")
    for name, parameters in PARAMETERS.items():
        work = Work(parameters, models=options.models)
        for nodes in NODES:
            machines = Machines(
                nodes, node_bandwidth=options.node_gbs * 1e9, storage_bandwidth=options.storage_gbs * 1e9
            )
            run = simulate(work, machines)
            print(
                f"{name:>6} {nodes:>6} {duration(estimated_seconds(work, machines)):>11} {duration(run.seconds):>11} "
                f"{run.busy_share:>6.0%} {run.failed_tasks:>5} {run.resent_tasks:>6}  {machines.limit}"
            )


def duration(seconds: float) -> str:
    if seconds < 600:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 36_000 else f"{seconds / 3600:.1f} h"


if __name__ == "__main__":
    main()
