"""Running a plan for a command: here or on a cluster, with what is told meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lbrx.cli.cluster_options import ClusterReporter, cluster_runner
from lbrx.cli.paths import check_replaced
from lbrx.errors import MemoryBudgetError
from lbrx.files.remote.paths import is_remote

if TYPE_CHECKING:
    from lbrx.cli.progress import Reporter
    from lbrx.cluster.description import PlanSource
    from lbrx.files.output.plan import OutputPlan

# Every method and quantization does with it: a search of the k-th largest element, and the buffers of each thread.
_ENOUGH_BYTES = 64 << 20
_ENOUGH_BYTES_PER_THREAD = 64 << 20


@contextmanager
def within_limits(threads: int | None, memory: str | None) -> Iterator[None]:
    """Threads and memory for a command; if the memory is too little, the error says how much is enough."""
    from lbrx.base.system import format_bytes
    from lbrx.memory import budget
    from lbrx.memory.limits import limited
    from lbrx.settings import settings

    with limited(threads, memory):
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
def resumable(report: Reporter) -> Iterator[None]:
    """A run that says how to go on if it is interrupted."""
    try:
        with report:
            yield
    except KeyboardInterrupt:
        report.interrupted()
        raise


def check_overwriting(plan: OutputPlan, overwrite: bool, *others: Path) -> None:
    """Raise if ``--overwrite`` would remove an input, or one of the other files that the command reads."""
    if overwrite and plan.is_directory and not is_remote(plan.out):
        check_replaced(plan.out, [header.path for header in plan.sources], others)


def run_output(
    plan: OutputPlan,
    call: PlanSource,
    report: Reporter,
    *,
    cluster: str | None,
    threads: int | None,
    memory: str | None,
    strict: bool,
    overwrite: bool,
    restart: bool,
    sync: bool,
    as_json: bool,
    is_quiet: bool,
) -> None:
    """Write the output of a plan; ``call`` is how workers of a cluster make the same plan."""
    from lbrx.files.output.run import execute

    nodes = ClusterReporter(as_json=as_json, is_quiet=is_quiet)
    with resumable(report):
        result = execute(
            plan,
            strict=strict,
            overwrite=overwrite,
            restart=restart,
            sync=sync,
            progress=report.progress,
            runner=cluster_runner(cluster, call, threads, memory, nodes),
        )
    report.done(result)
    nodes.done()
