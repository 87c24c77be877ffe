"""`lbrx merge`: models merged as a recipe says."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from lbrx.cli.options import Cluster, Device, DryRun, Format, LimitOptions, RunOptions
from lbrx.cli.parameters import Argument, Option
from lbrx.cli.paths import check_output_name
from lbrx.cli.progress import Reporter
from lbrx.cli.running import planning_for, reporting, show_files, write_output

if TYPE_CHECKING:
    from lbrx.files.output.plan import OutputPlan


def merge(
    recipe: Annotated[Path, Argument("A recipe in mergekit's YAML.")],
    out: Annotated[Path, Argument("The directory to write, or a file that ends in .gguf.")],
    *,
    format: Format = None,
    quantize: Annotated[
        str | None,
        Option(metavar="TYPE", help="Quantize in the same pass: q4_k_m, mlx_4, ..."),
    ] = None,
    dry_run: DryRun = False,
    limits: LimitOptions,
    seed: Annotated[int, Option(help="For methods that draw random numbers.")] = 0,
    options: RunOptions,
    cluster: Cluster = None,
    device: Device = "cpu",
) -> None:
    """Merge models as a recipe says.

    Memory does not grow with the models. After a failure or a kill, run the same command to resume. The output depends
    only on the recipe, the models and the seed. A model that is not a local path is downloaded from the Hugging Face
    hub, which HF_TOKEN, HF_HOME and HF_HUB_OFFLINE control.

    Examples:

      lbrx merge recipe.yml merged

      lbrx merge recipe.yml merged --dry-run

      lbrx merge recipe.yml merged --shard-size 2GB --seed 7 --strict

      lbrx merge recipe.yml merged.gguf --quantize q4_k_m

      lbrx merge recipe.yml merged --json > events.jsonl

      lbrx merge recipe.yml /shared/merged --cluster auto

      lbrx merge recipe.yml merged --device metal
    """
    from lbrx.jobs.merge.merge import merge as merge_models
    from lbrx.jobs.merge.merge import plan_output_of_merge

    write = partial(
        merge_models, recipe, out, format=format, quantize=quantize, max_shard_bytes=limits.shard_size, seed=seed
    )
    with reporting(options) as report:
        check_output_name(out, format)
        if not dry_run:
            write_output(write, report, limits, options, inputs=[recipe], device=device, cluster=cluster)
            return
        with planning_for(limits, report, device, cluster):
            plan = plan_output_of_merge(*write.args, **write.keywords)
            report.warnings(plan.warnings)
            _show_plan(plan, report, as_json=options.json_output)


def _show_plan(plan: OutputPlan, report: Reporter, *, as_json: bool) -> None:
    from lbrx.jobs.merge.plan import Plan
    from lbrx.jobs.merge.plan.estimate import estimate

    if isinstance(plan, Plan):
        report.planned(plan, estimate(plan))
    else:
        show_files(plan, as_json=as_json)
