"""`lbrx moe`: dense models made into a mixture of experts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lbrx.cli.options import DryRun, JsonEvents, Overwrite, Quiet, Restart, ShardSize, Threads
from lbrx.cli.progress import Reporter, reporter
from lbrx.errors import LbrxError
from lbrx.system import format_bytes

if TYPE_CHECKING:
    from lbrx.moe import MoePlan


def moe(
    recipe: Annotated[Path, typer.Argument(help="A recipe in mergekit-moe's YAML.")],
    out: Annotated[Path, typer.Argument(help="The directory to write.")],
    dry_run: DryRun = False,
    threads: Threads = None,
    shard_size: ShardSize = None,
    seed: Annotated[int, typer.Option(help="For random gates and noise.")] = 0,
    json_output: JsonEvents = False,
    overwrite: Overwrite = False,
    restart: Restart = False,
    quiet: Quiet = False,
) -> None:
    """Make a mixture of experts from dense models.

    Attention, norms and embeddings come from the base model, the experts' feed-forward matrices from models of the same
    shape; the gates follow the recipe's 'gate_mode'. The result is a Mixtral model, or with a shared expert a Qwen2-MoE
    one. After a failure, or a kill, the same command goes on where it stopped.

    Examples:

      lbrx moe recipe.yml mixture

      lbrx moe recipe.yml mixture --dry-run

      lbrx moe recipe.yml mixture --seed 7 --shard-size 2GB
    """
    from lbrx.moe import load_moe_recipe, plan_moe
    from lbrx.settings import using

    report = reporter(as_json=json_output, is_quiet=quiet)
    try:
        with using(threads=threads):
            parsed, text = load_moe_recipe(recipe)
            plan = plan_moe(parsed, recipe_text=text, directory=recipe.parent, seed=seed)
            report.warnings(plan.warnings)
            if dry_run:
                _show(plan, out)
            else:
                _write(plan, out, report, shard_size, overwrite, restart)
    except LbrxError as error:
        report.failed(error)
        raise


def _show(plan: MoePlan, out: Path) -> None:
    nbytes = sum(tensor.nbytes for tensor in plan.tensors.values())
    rows = [("layout", plan.layout.name), *(("model", model.label) for model in plan.models)]
    rows += [("output", str(out)), ("tensors", f"{len(plan.tensors):,}"), ("to write", format_bytes(nbytes))]
    rows += [("other files", ", ".join(file.name for file in plan.side_files))]
    for name, value in rows:
        typer.echo(f"{name:<16}{value}")


def _write(plan: MoePlan, out: Path, report: Reporter, shard_size: str | None, overwrite: bool, restart: bool) -> None:
    from lbrx.moe import write_moe

    with report:
        result = write_moe(
            plan,
            out,
            max_shard_bytes=shard_size,
            overwrite=overwrite,
            restart=restart,
            progress=report.progress,
        )
    report.done(result)
