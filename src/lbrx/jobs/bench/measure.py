"""Measuring cases: the best of several runs, by the clock on both devices, and by the time stamps of the GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np

from lbrx.base.fast_dataclass import dataclass
from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.context.profiler import Profile, ProfiledContext
from lbrx.devices.metal.ops.arrays import download
from lbrx.jobs.bench.cases import BenchCase, cases


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One case: the best times, what was moved and computed, and how far the results are apart.

    ``metal_seconds`` is what a caller waits: Python, launch and GPU. ``gpu_seconds`` is what the GPU works.
    """

    name: str
    cpu_seconds: float
    metal_seconds: float
    gpu_seconds: float
    nbytes: int
    flops: int
    error: float
    bound: float

    @property
    def speedup(self) -> float:
        """How many times as long the CPU takes, launch and waiting included."""
        return self.cpu_seconds / self.metal_seconds if self.metal_seconds else 0.0

    @property
    def gigabytes_per_second(self) -> float:
        return self.nbytes / self.gpu_seconds / 1e9 if self.gpu_seconds else 0.0

    @property
    def gigaflops(self) -> float:
        return self.flops / self.gpu_seconds / 1e9 if self.gpu_seconds else 0.0

    @property
    def agrees(self) -> bool:
        """Whether the results are as close as they should be; NaN is not."""
        return self.error <= self.bound


@dataclass(frozen=True, slots=True)
class BenchResult:
    """All rows, and every dispatch behind them."""

    device: str
    emulated: bool
    size: str
    rows: tuple[BenchRow, ...]
    profile: Profile


def measure(
    context: MetalContext,
    size: str,
    *,
    only: str | None = None,
    repeats: int = 5,
    progress: Callable[[str], None] | None = None,
) -> BenchResult:
    """Run the cases of a size on CPU and device; ``progress`` is called with the name of each before it runs."""
    profiled = ProfiledContext(context)
    measured = []
    for case in cases(profiled, size, only):
        if progress is not None:
            progress(case.name)
        measured.append(_row(profiled, case, repeats))
    return BenchResult(context.info.name, context.info.emulated, size, tuple(measured), profiled.profile())


def _row(context: ProfiledContext, case: BenchCase, repeats: int) -> BenchRow:
    expected = case.on_cpu().astype(np.float64)  # also compiles, and touches the memory
    result = download(context, case.on_metal()).astype(np.float64)
    error = float(np.abs(result - expected).max()) / max(1.0, float(np.abs(expected).max()))
    cpu_seconds = min(_wall_seconds(case.on_cpu) for _ in range(repeats))
    with context.unprofiled():
        metal_seconds = min(_wall_seconds(partial(_run_and_wait, context, case)) for _ in range(repeats))
    before = len(context.profile().calls)
    for _ in range(repeats):
        case.on_metal()
    calls = context.profile().calls[before:]
    each = len(calls) // repeats
    runs = [calls[first : first + each] for first in range(0, len(calls), each)]
    gpu_seconds = min(sum(call.seconds for call in run) for run in runs)
    nbytes, flops = sum(call.work.nbytes for call in runs[0]), sum(call.work.flops for call in runs[0])
    return BenchRow(case.name, cpu_seconds, metal_seconds, gpu_seconds, nbytes, flops, error, case.bound)


def _run_and_wait(context: ProfiledContext, case: BenchCase) -> None:
    case.on_metal()
    context.synchronize()


def _wall_seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
