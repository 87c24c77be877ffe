"""Running a plan for a command: here or on a cluster, with what is told meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lbrx.cli.cluster_options import ClusterReporter, cluster_options

if TYPE_CHECKING:
    from lbrx.cli.progress import Reporter
    from lbrx.cluster.description import PlanSource
    from lbrx.output_plan import OutputPlan


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
    from lbrx.execute import execute

    nodes = ClusterReporter(as_json=as_json, is_quiet=is_quiet)
    with report:
        result = execute(
            plan,
            strict=strict,
            overwrite=overwrite,
            restart=restart,
            sync=sync,
            progress=report.progress,
            cluster=cluster_options(cluster, call, threads, memory, nodes),
        )
    report.done(result)
    nodes.done()
