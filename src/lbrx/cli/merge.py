"""`lbrx merge`: merge models according to a recipe."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from lbrx.base.system import format_bytes
from lbrx.cli.options import Cluster, Device, DryRun, Format, LimitOptions, RunOptions, type_names
from lbrx.cli.parameters import Argument, Option
from lbrx.cli.paths import check_output_name
from lbrx.cli.progress import duration_text
from lbrx.cli.running import planning_for, reporting, write_output
from lbrx.errors import UsageError
from lbrx.registry import METHODS

if TYPE_CHECKING:
    from lbrx.files.output.options import CountCallback
    from lbrx.files.output.plan import OutputPlan
    from lbrx.jobs.merge.plan import Plan


def merge(
    paths: Annotated[
        list[str],
        Argument(
            "A recipe in mergekit's YAML, and the directory or .gguf file to write. With --method: the models.",
            "RECIPE OUT",
        ),
    ],
    *,
    method: Annotated[
        str | None,
        Option(
            metavar="NAME", help="Merge without a recipe, with this method ('lbrx methods').", values=lambda: METHODS
        ),
    ] = None,
    base: Annotated[str | None, Option(metavar="MODEL", help="With --method: the base model.")] = None,
    weight: Annotated[
        str | None, Option(metavar="W[,W...]", help="With --method: one weight for all models, or one per model.")
    ] = None,
    set: Annotated[
        list[str] | None,
        Option("--set", metavar="NAME=VALUE", help="With --method: set a parameter (t=0.4), or dtype=bf16."),
    ] = None,
    out: Annotated[
        str | None, Option(metavar="OUT", help="With --method: the directory or .gguf file to write.")
    ] = None,
    format: Format = None,
    quantize: Annotated[
        str | None,
        Option(
            metavar="TYPE",
            help="Also quantize the result: q4_k_m, mlx_4, ..., or 'same' as the inputs (FP8, ...).",
            values=_quantizations,
        ),
    ] = None,
    tensors: Annotated[
        str | None,
        Option(
            metavar="union|intersection",
            help="Merge checkpoints of any kind by tensor names: all tensors, or those that all models have.",
            values=lambda: ("union", "intersection"),
        ),
    ] = None,
    stages: Annotated[
        str | None, Option(metavar="DIR", help="Also write the recipe's named stages to DIR/NAME.")
    ] = None,
    dry_run: DryRun = False,
    limits: LimitOptions,
    seed: Annotated[int, Option(help="Random seed, for methods that use one.")] = 0,
    allow_code: Annotated[
        bool, Option("--allow-code", help="Let the recipe run the Python file that its merge_method names.")
    ] = False,
    options: RunOptions,
    cluster: Cluster = None,
    device: Device = "cpu",
) -> None:
    """Merge models according to a recipe.

    Memory does not grow with the models. If the run stops, run the same command to resume. The output depends only on
    the recipe, the models and the seed. Models that are not local paths are downloaded from the Hugging Face hub; set
    HF_TOKEN, HF_HOME and HF_HUB_OFFLINE as usual.

    Examples:

      lbrx merge recipe.yml merged

      lbrx merge model-a model-b --method linear --weight 0.5 --out merged

      lbrx merge recipe.yml merged --dry-run

      lbrx merge recipe.yml merged --shard-size 2GB --seed 7 --strict

      lbrx merge recipe.yml merged.gguf --quantize q4_k_m

      lbrx merge unet.yml merged --tensors union

      lbrx merge recipe.yml merged --json > events.jsonl

      lbrx merge recipe.yml /shared/merged --cluster auto

      lbrx merge recipe.yml merged --device metal
    """
    from lbrx.jobs.merge.merge import check_texts, in_output_format, read_and_plan
    from lbrx.jobs.merge.merge import merge as merge_models

    with reporting("merging", options) as report:
        recipe, target = _recipe_and_target(paths, method, out, base, _parameters(weight, set))
        if method is not None:
            report.recipe(str(recipe))
        check_output_name(target, format, directory_only=True)
        write = partial(
            merge_models,
            recipe,
            target,
            format=format,
            quantize=quantize,
            max_shard_bytes=limits.shard_size,
            seed=seed,
            allow_code=allow_code or method is not None,  # --method names the file itself
            tensors=tensors,
            stages=stages,
        )
        if not dry_run:
            inputs = [recipe] if isinstance(recipe, Path) else []
            with ExitStack() as status:
                write_output(
                    partial(write, measuring=_measuring(status)),
                    report,
                    limits,
                    options,
                    inputs=inputs,
                    status=status,
                    device=device,
                    cluster=cluster,
                    next_command=_next_command(target, format, quantize),
                )
            return
        with planning_for(limits, report, device, cluster):
            merged = read_and_plan(
                *write.args,
                max_shard_bytes=limits.shard_size,
                seed=seed,
                allow_code=allow_code or method is not None,
                tensors=tensors,
                strict=options.strict,
            )
            check_texts(merged)
            plan = in_output_format(merged, format=format, quantize=quantize, max_shard_bytes=limits.shard_size)
            report.warnings(plan.warnings)
            _show(merged, plan, options)


def _measuring(status: ExitStack) -> CountCallback:
    """Return a callback that shows progress from its first call: few methods measure anything before they merge."""
    shown: list[CountCallback] = []

    def measuring(done: int, total: int, item: str) -> None:
        if not shown:
            from lbrx.cli.status import shown_progress

            shown.append(status.enter_context(shown_progress("measuring")))
        shown[0](done, total, item)

    return measuring


def _quantizations() -> list[str]:
    """Return the values of ``--quantize``."""
    return [*type_names(), "same"]


def _recipe_and_target(
    paths: Sequence[str], method: str | None, out: str | None, base: str | None, values: Mapping[str, str]
) -> tuple[Path | str, Path]:
    """Return the recipe's path (or its text if ``method`` is given) and the output path."""
    if method is not None:
        from lbrx.jobs.merge.inline import inline_recipe

        if out is None:
            raise UsageError("--method needs --out, because all arguments are models")
        return inline_recipe(paths, method, base, values), Path(out)
    if out is not None or base is not None or values:
        raise UsageError("--out, --base, --weight and --set need --method; otherwise expected RECIPE and OUT")
    if len(paths) != 2:
        raise click.UsageError(f"{len(paths)} arguments; expected RECIPE and OUT, or models with --method and --out")
    return Path(paths[0]), Path(paths[1])


def _next_command(out: Path, format: str | None, quantize: str | None) -> str:
    if quantize is None and format != "mlx" and out.suffix != ".gguf":
        return shlex.join(["lbrx", "quantize", str(out), f"{out}-q4_k_m.gguf", "--to", "q4_k_m"])
    return shlex.join(["lbrx", "score", str(out), "--text", "FILE"])


def _parameters(weight: str | None, given: Sequence[str] | None) -> dict[str, str]:
    values = {} if weight is None else {"weight": weight}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not name or not equals or not value:
            raise UsageError(f"--set {text}: expected NAME=VALUE, such as t=0.4")
        values[name] = value
    return values


def _show(merged: Plan, plan: OutputPlan, options: RunOptions) -> None:
    """Show the plan of what is written; ``merged`` is that of the merge before a conversion."""
    from lbrx.cli.dry_run import show_plan
    from lbrx.jobs.merge.plan.estimate import estimate

    cost, method = estimate(merged), merged.stage.method.name
    models = [(model.label, sum(header.file_bytes for header in model.files)) for model in merged.models]
    labels = [f"{label} ({format_bytes(nbytes)})" for label, nbytes in models]
    fields = {
        "method": method,
        "models": [label for label, _ in models],
        "tensors": cost.tensors,
        "read_bytes": cost.read_bytes,
        "passes": cost.passes,
    }
    costs = [("to read", format_bytes(cost.read_bytes)), ("passes", str(cost.passes))]
    if plan is merged:  # the estimate does not know what an encoding costs
        fields |= {"seconds": round(cost.seconds, 3), "peak_memory_bytes": cost.peak_memory_bytes}
        after = "" if merged.stage.inputs is None else ", after each model has run on its text"
        costs.append(("time", f"about {duration_text(cost.seconds)}{after}"))
        costs.append(("memory", f"about {format_bytes(cost.peak_memory_bytes)} at most"))
    inputs = [("method", method), *zip(["model", *[""] * (len(labels) - 1)], labels, strict=True)]
    show_plan(plan, options, inputs=inputs, costs=costs, fields=fields)
