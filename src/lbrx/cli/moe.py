"""`lbrx moe`: build a mixture of experts from dense models."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from lbrx.cli.options import Device, DryRun, LimitOptions, RunOptions
from lbrx.cli.parameters import Argument, Option
from lbrx.cli.running import planning_for, reporting, write_output
from lbrx.errors import UsageError

if TYPE_CHECKING:
    from lbrx.files.output.plan import OutputPlan
    from lbrx.jobs.moe import MoePlan


def moe(
    recipe: Annotated[Path, Argument("A recipe in mergekit-moe's YAML.")],
    out: Annotated[Path, Argument("The directory to write.")],
    *,
    dry_run: DryRun = False,
    limits: LimitOptions,
    seed: Annotated[int, Option(help="Random seed for gates and noise.")] = 0,
    options: RunOptions,
    device: Device = "cpu",
) -> None:
    """Build a mixture of experts from dense models.

    Takes attention, norms and embeddings from the base model, and the feed-forward matrices of the experts from models
    of the same shape. The recipe's 'gate_mode' sets how gates are computed. The result is a Mixtral,
    Qwen2-MoE, Qwen3-MoE or DeepSeek model. If the run stops, run the same command to resume.

    Examples:

      lbrx moe recipe.yml mixture

      lbrx moe recipe.yml mixture --dry-run

      lbrx moe recipe.yml mixture --seed 7 --shard-size 2GB
    """
    from lbrx.jobs.moe.moe import moe as make_mixture
    from lbrx.jobs.moe.moe import plan_moe_output, plan_recipe

    with reporting("merging", options) as report:
        if out.suffix == ".gguf":
            raise UsageError(f"{out}: expected a directory; use 'lbrx convert' to turn the mixture into a GGUF file")
        if not dry_run:
            write = partial(make_mixture, recipe, out, max_shard_bytes=limits.shard_size, seed=seed)
            write_output(write, report, limits, options, inputs=[recipe], device=device)
            return
        with planning_for(limits, report, device):
            mixture = plan_recipe(recipe, seed=seed, strict=options.strict)
            plan = plan_moe_output(mixture, out, max_shard_bytes=limits.shard_size)
            report.warnings(plan.warnings)
            _show(mixture, plan, options)


def _show(mixture: MoePlan, plan: OutputPlan, options: RunOptions) -> None:
    from lbrx.cli.dry_run import show_plan

    models = [model.label for model in mixture.models]
    nbytes = sum(tensor.nbytes for tensor in mixture.tensors.values())
    fields = {"layout": mixture.layout.name, "models": models, "write_bytes": nbytes, "tensors": len(mixture.tensors)}
    rows = [("layout", mixture.layout.name), *(("model", label) for label in models)]
    show_plan(plan, options, inputs=rows, fields=fields)
