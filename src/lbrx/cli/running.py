"""Running a plan for a command: limits, device, progress and errors."""

from __future__ import annotations

import json
import resource
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lbrx.base.system import format_bytes
from lbrx.cli.paths import check_replaced
from lbrx.cli.progress import Reporter, reporter
from lbrx.errors import LbrxError, MemoryBudgetError, UsageError
from lbrx.files.remote.paths import is_remote

if TYPE_CHECKING:
    from lbrx.cli.options import LimitOptions, RunOptions
    from lbrx.files.output.plan import OutputPlan

_OPEN_FILES = 4096
# Every method and quantization does with it: a search of the k-th largest element, and the buffers of each thread.
_ENOUGH_BYTES = 64 << 20
_ENOUGH_BYTES_PER_THREAD = 64 << 20


@contextmanager
def within_limits(limits: LimitOptions) -> Iterator[None]:
    """Threads and memory for a command; if the memory is too little, the error says how much is enough."""
    from lbrx.memory import budget
    from lbrx.memory.limits import limited
    from lbrx.settings import settings

    with limited(limits.threads, limits.memory):
        try:
            yield
        except MemoryBudgetError as error:
            enough_bytes = _ENOUGH_BYTES + settings.threads * _ENOUGH_BYTES_PER_THREAD
            if budget().limit_bytes >= enough_bytes:
                raise
            raise MemoryBudgetError(
                f"{format_bytes(budget().limit_bytes)} of memory are too little: {error}; "
                f"expected --memory {enough_bytes >> 20}MiB, which is enough for {settings.threads} threads"
            ) from error


@contextmanager
def on_device(name: str, warn: Callable[[Sequence[str]], None], cluster: str | None = None) -> Iterator[None]:
    """Compute on a device for the length of a ``with`` block; at its end, warn of what was left to the CPU, and why.

    A device that is not there is an error before anything is written.
    """
    if name == "cpu":
        yield
        return
    if cluster is not None:
        raise UsageError(f"--device {name} is for this machine, but with --cluster {cluster} its workers compute")
    from lbrx.engine.device import CpuFallback, device, fallbacks
    from lbrx.settings import using

    device(name).open()
    before = set(fallbacks())
    with warnings.catch_warnings(), using(device=name):
        warnings.simplefilter("ignore", CpuFallback)
        yield
    warn([f"computed on the CPU in part: {reason}" for reason in fallbacks() if reason not in before])


@contextmanager
def reporting(options: RunOptions) -> Iterator[Reporter]:
    """The reporter of a command that writes a model. It hears of errors before they are raised."""
    _allow_many_files()
    report = reporter(as_json=options.json_output, is_quiet=options.quiet)
    try:
        yield report
    except LbrxError as error:
        report.failed(error)
        raise


def write_output(
    plan: OutputPlan,
    plan_call: partial[Any],
    report: Reporter,
    limits: LimitOptions,
    options: RunOptions,
    *,
    inputs: Sequence[Path] = (),
    cluster: str | None = None,
    attribute: str | None = None,
) -> None:
    """Write the output of a plan with progress; ``inputs`` are files besides models that must not be overwritten.

    ``plan_call`` makes the plan, or an object that has it as ``attribute``; workers of a cluster repeat the call.
    """
    from lbrx.files.output.run import execute

    if options.overwrite and plan.is_directory and not is_remote(plan.out):
        check_replaced(plan.out, [header.path for header in plan.sources], inputs)
    nodes, runner = None, None
    if cluster is not None:
        from lbrx.cli.cluster_reporter import ClusterReporter, cluster_runner

        nodes = ClusterReporter(as_json=options.json_output, is_quiet=options.quiet)
        runner = cluster_runner(cluster, plan_call, attribute, limits, nodes)
    try:
        with report:
            result = execute(
                plan,
                strict=options.strict,
                overwrite=options.overwrite,
                restart=options.restart,
                sync=options.sync,
                progress=report.progress,
                runner=runner,
            )
    except KeyboardInterrupt:
        report.interrupted()
        raise
    report.done(result)
    if nodes is not None:
        nodes.done()


def show_files(plan: OutputPlan, *, as_json: bool) -> None:
    """Print the files that a plan would write, and the types in them."""
    counts: dict[str, int] = {}
    for layout in plan.layouts:
        for slot in layout.slots:
            counts[slot.type_name] = counts.get(slot.type_name, 0) + 1
    nbytes = sum(layout.file_bytes for layout in plan.layouts)
    files = [layout.name for layout in plan.layouts] + [file.name for file in plan.side_files]
    if as_json:
        fields = {"event": "plan", "out": str(plan.out), "types": counts, "write_bytes": nbytes, "files": files}
        print(json.dumps(fields))
        return
    print(f"{'output':<16}{plan.out}")
    print(f"{'tensors':<16}{', '.join(f'{count:,} {type_name}' for type_name, count in counts.items())}")
    print(f"{'to write':<16}{format_bytes(nbytes)} in {', '.join(files)}")


def _allow_many_files() -> None:
    """Raise the soft limit of open files: macOS has 256, and every shard of every model is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
