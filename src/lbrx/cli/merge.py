"""`lbrx merge`: models merged as a recipe says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from lbrx.cli.cluster_options import Cluster
from lbrx.cli.device_option import Device, on_device
from lbrx.cli.options import (
    DryRun,
    JsonEvents,
    Memory,
    Overwrite,
    Quiet,
    Restart,
    ShardSize,
    Strict,
    Sync,
    Threads,
    allow_many_files,
)
from lbrx.cli.parameters import Argument, Option
from lbrx.cli.paths import check_output_name
from lbrx.cli.planned_files import show_files
from lbrx.cli.progress import Reporter, reporter
from lbrx.cli.running import check_overwriting, run_output, within_limits
from lbrx.errors import LbrxError

if TYPE_CHECKING:
    from lbrx.files.output.plan import OutputPlan


def merge(
    recipe: Annotated[Path, Argument("A recipe in mergekit's YAML.")],
    out: Annotated[Path, Argument("The directory to write, or a file that ends in .gguf.")],
    format: Annotated[str | None, Option(help="gguf, mlx or safetensors; what OUT ends in by default.")] = None,
    quantize: Annotated[
        str | None,
        Option(metavar="TYPE", help="Quantize in the same pass: q4_k_m, mlx_4, ..."),
    ] = None,
    dry_run: DryRun = False,
    threads: Threads = None,
    memory: Memory = None,
    shard_size: ShardSize = None,
    seed: Annotated[int, Option(help="For methods that draw random numbers.")] = 0,
    strict: Strict = False,
    json_output: JsonEvents = False,
    overwrite: Overwrite = False,
    restart: Restart = False,
    sync: Sync = True,
    quiet: Quiet = False,
    cluster: Cluster = None,
    device: Device = "cpu",
) -> None:
    """Merge models as a recipe says.

    Memory does not grow with the models. After a failure, or a kill, the same command goes on where it stopped. What is
    written depends on the recipe, the models and the seed alone. A model that is no local path is downloaded from the
    Hugging Face hub (HF_TOKEN, HF_HOME and HF_HUB_OFFLINE hold).

    Examples:

      lbrx merge recipe.yml merged

      lbrx merge recipe.yml merged --dry-run

      lbrx merge recipe.yml merged --shard-size 2GB --seed 7 --strict

      lbrx merge recipe.yml merged.gguf --quantize q4_k_m

      lbrx merge recipe.yml merged --json > events.jsonl

      lbrx merge recipe.yml /shared/merged --cluster auto

      lbrx merge recipe.yml merged --device metal
    """
    from lbrx.cluster.description import PlanSource

    allow_many_files()
    report = reporter(as_json=json_output, is_quiet=quiet)
    try:
        check_output_name(out, format)
        with within_limits(threads, memory), on_device(device, report.warnings, cluster):
            call = PlanSource.merge(
                recipe, out, format=format, quantize=quantize, max_shard_bytes=shard_size, seed=seed
            )
            plan = call.build()
            report.warnings(plan.warnings)
            if dry_run:
                _show_plan(plan, report, as_json=json_output)
                return
            check_overwriting(plan, overwrite, recipe)
            run_output(
                plan,
                call,
                report,
                cluster=cluster,
                threads=threads,
                memory=memory,
                strict=strict,
                overwrite=overwrite,
                restart=restart,
                sync=sync,
                as_json=json_output,
                is_quiet=quiet,
            )
    except LbrxError as error:
        report.failed(error)
        raise


def _show_plan(plan: OutputPlan, report: Reporter, *, as_json: bool) -> None:
    from lbrx.jobs.merge.plan import Plan
    from lbrx.jobs.merge.plan.estimate import estimate

    if isinstance(plan, Plan):
        report.planned(plan, estimate(plan))
    else:
        show_files(plan, as_json=as_json)
