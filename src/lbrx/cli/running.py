"""Run a plan for a command: limits, device, progress and errors."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lbrx.cli.paths import check_replaced
from lbrx.cli.progress import Reporter, reporter
from lbrx.errors import LbrxError
from lbrx.files.remote.paths import is_remote

if TYPE_CHECKING:
    from lbrx.cli.options import LimitOptions, RunOptions
    from lbrx.files.output.plan import OutputPlan
    from lbrx.files.output.run import RunResult


@contextmanager
def reporting_fallbacks(warn: Callable[[Sequence[str]], None]) -> Iterator[None]:
    """At the end of the block, warn about operations that ran on the CPU instead of the device, and why."""
    from lbrx.engine.device import CpuFallback, fallbacks

    before = set(fallbacks())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CpuFallback)
        yield
    warn([f"computed partly on the CPU: {reason}" for reason in fallbacks() if reason not in before])


@contextmanager
def planning_for(
    limits: LimitOptions, report: Reporter, device: str | None = None, cluster: str | None = None
) -> Iterator[None]:
    """Apply the limits and the device of a command while it plans."""
    from lbrx.engine.device import computing_on
    from lbrx.memory.limits import limited

    with limited(limits.threads, limits.memory), reporting_fallbacks(report.warnings), computing_on(device, cluster):
        yield


@contextmanager
def reporting(verb: str, options: RunOptions) -> Iterator[Reporter]:
    """Yield the reporter of a command that writes a model, and pass it errors before they are raised."""
    report = reporter(verb, as_json=options.json_output, is_quiet=options.quiet)
    try:
        yield report
    except LbrxError as error:
        report.failed(error)
        raise


def write_output(
    write: Callable[..., RunResult],
    report: Reporter,
    limits: LimitOptions,
    options: RunOptions,
    *,
    inputs: Sequence[Path] = (),
    status: ExitStack | None = None,
    device: str | None = None,
    cluster: str | None = None,
    next_command: str | None = None,
) -> None:
    """Call a function that writes a model with the options of a run, and report progress and result.

    ``inputs`` are non-model files that must not be overwritten. ``status`` is closed when planning ends.
    """

    plans: list[OutputPlan] = []

    def planned(plan: OutputPlan) -> None:
        plans.append(plan)
        if status is not None:
            status.close()
        report.warnings(plan.warnings)
        if options.overwrite and plan.is_directory and not is_remote(plan.out):
            check_replaced(plan.out, [header.path for header in plan.sources], inputs)

    from lbrx.files.output.options import RunKeywords

    given = {**limits._asdict(), **options._asdict(), "device": device, "progress": report.progress, "planned": planned}
    given["cluster"] = nodes = None
    if cluster is not None:
        from lbrx.cli.cluster_reporter import ClusterReporter
        from lbrx.cluster.options import ClusterOptions

        nodes = ClusterReporter(as_json=options.json_output, is_quiet=options.quiet)
        given["cluster"] = ClusterOptions(cluster, progress=nodes)
    with reporting_fallbacks(report.warnings):
        try:
            with report:
                result = write(**{name: given[name] for name in RunKeywords.__annotations__})
        except KeyboardInterrupt:
            if plans:
                report.interrupted()
            raise
        if next_command is not None:  # of a split model with its first shard
            next_command = next_command.replace(shlex.quote(str(plans[0].out)), shlex.quote(str(result.out)))
        report.done(result, plans[0], next_command)
    if nodes is not None:
        nodes.done()
