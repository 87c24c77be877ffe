"""Counts workloads in a process of its own: ``python -m apple.counting CPU CACHE [NAME...]`` prints lines of JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from apple.core import Mix

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Counted:
    """What one element of a workload takes on a core; ``mca`` is llvm-mca's cycles, or None without llvm-mca."""

    name: str
    nbytes: float
    instructions: float
    cycles: float
    vector_share: float
    mca: float | None = None
    ggml: str | None = None


def counted(name: str, nbytes: float, mix: Mix, mca: float | None, ggml: str | None) -> Counted:
    """The figures of a mix of instructions for one element."""
    arithmetic = mix.simd + mix.integers
    share = mix.vectors / arithmetic if arithmetic else 0.0
    rounded = (round(number, 4) for number in (mix.instructions, mix.cycles, share))
    return Counted(name, nbytes, *rounded, None if mca is None else round(mca, 3), ggml)


def count_in_process(cpu: str, names: Iterable[str] = (), cache: Path | None = None) -> list[Counted]:
    """Count the workloads of these names, or all, with kernels for a processor."""
    command = [sys.executable, "-m", "apple.counting", cpu, str(cache or default_cache()), *names]
    environment = {**_environment(), "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return [Counted(**json.loads(line)) for line in done.stdout.splitlines()]


def default_cache() -> Path:
    """Where compiled kernels are kept, beside those of this machine."""
    from lbrx.base import system

    return system.cache_directory("apple")


def _environment() -> dict[str, str]:
    import os

    return {name: value for name, value in os.environ.items() if not name.startswith("LBRX_")}


def _count_all(cpu: str, cache: str, names: list[str]) -> Iterator[Counted]:
    from apple.package import emulate

    machine = emulate(cpu, cache)
    from apple.mca import cycles_of
    from apple.workloads import WORKLOADS

    for workload in WORKLOADS:
        if names and workload.name not in names:
            continue
        mixes = []
        for size in workload.sizes:
            run = workload.prepare(size)
            run()  # compiles
            with machine.counting() as count:
                run()
            mixes.append(count.mix())
        small, large = workload.sizes
        mix = (mixes[1] + mixes[0] * -1) * (1 / (workload.elements * (large - small)))
        mca = None if names else cycles_of(count, cpu)
        per_element = None if mca is None else mca / (workload.elements * large)
        yield counted(workload.name, workload.nbytes, mix, per_element, workload.ggml)


if __name__ == "__main__":
    for result in _count_all(sys.argv[1], sys.argv[2], sys.argv[3:]):
        print(json.dumps(result.__dict__), flush=True)
