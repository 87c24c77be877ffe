"""``lbrx.bench``: how fast this machine's GPU is, compared with its CPU."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.context.capture import captured
from lbrx.devices.metal.errors import MetalUnavailable
from lbrx.errors import UsageError
from lbrx.jobs.bench.measure import BenchResult
from lbrx.registry import BENCHMARKS, load

_DEVICES = ", ".join(BENCHMARKS)


def bench(
    *,
    device: str = next(iter(BENCHMARKS)),
    size: str | None = None,
    only: str | None = None,
    repeats: int = 5,
    tune: bool = False,
    emulated: bool = False,
    capture: Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> BenchResult:
    """Run what a model does (products, attention, norms) on the CPU and on a device, and compare times and results.

    ``size`` is ``"tiny"``, ``"small"`` or ``"large"``; by default large on a GPU and tiny if ``emulated``, whose times
    say nothing about a GPU. ``only`` is a part of the names of the cases to run. ``tune`` first finds the fastest
    variants of the kernels and remembers them. ``capture`` is a ``.gputrace`` document to write, for Xcode.
    ``progress`` is called with the name of each case before it runs.

    >>> bench(device="abacus")
    Traceback (most recent call last):
    lbrx.errors.UsageError: unknown device 'abacus'; expected metal
    """
    if device not in BENCHMARKS:
        raise UsageError(f"unknown device {device!r}; expected {_DEVICES}")
    if tune and emulated:
        raise UsageError("--tune measures a GPU and cannot be used with --emulated")
    context = _open(emulated)
    chosen_size = size or ("tiny" if context.info.emulated else "large")
    if tune:
        from lbrx.jobs.bench.tuned import tune_all

        tune_all(context, chosen_size, progress=progress)
    run = partial(load(BENCHMARKS[device]), context, chosen_size, only=only, repeats=repeats, progress=progress)
    with nullcontext() if capture is None else captured(context, capture):
        result: BenchResult = run()
    if not result.rows:
        raise UsageError(f"no case name contains {only!r}")
    return result


def _open(emulated: bool) -> MetalContext:
    if emulated:
        return MetalContext.open("emulated")
    try:
        return MetalContext.open("native")
    except MetalUnavailable as error:
        raise MetalUnavailable(
            f"{error}. --emulated runs the same kernels on the CPU, but its times say nothing about a GPU"
        ) from error
