"""`lbrx merge`: models merged as a recipe says."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lbrx.cli.progress import Reporter, reporter
from lbrx.errors import LbrxError

if TYPE_CHECKING:
    from lbrx.plan import Plan

_OPEN_FILES = 4096


def merge(
    recipe: Annotated[Path, typer.Argument(help="A recipe in mergekit's YAML.")],
    out: Annotated[Path, typer.Argument(help="The directory to write.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")] = False,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Processors to use; all of them by default.", show_default=False)
    ] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="The most memory for buffers, such as 512MB.", show_default=False)
    ] = None,
    shard_size: Annotated[str, typer.Option(metavar="SIZE", help="The largest file of weights to write.")] = "5GB",
    seed: Annotated[int, typer.Option(help="For methods that draw random numbers.")] = 0,
    strict: Annotated[bool, typer.Option("--strict", help="Fail on NaN and infinite values.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print events as lines of JSON.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT, once everything is written.")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Discard the unfinished work of an earlier run.")] = False,
    sync: Annotated[bool, typer.Option(help="Wait until the result is on the disk.")] = True,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
) -> None:
    """Merge models as a recipe says.

    Memory does not grow with the models. After a failure, or a kill, the same command goes on where it stopped. What is
    written depends on the recipe, the models and the seed alone. A model that is no local path is downloaded from the
    Hugging Face hub (HF_TOKEN, HF_HOME and HF_HUB_OFFLINE hold).

    Examples:

      lbrx merge recipe.yml merged

      lbrx merge recipe.yml merged --dry-run

      lbrx merge recipe.yml merged --shard-size 2GB --seed 7 --strict

      lbrx merge recipe.yml merged --json > events.jsonl
    """
    from lbrx.merging import limited, read_and_plan

    _allow_many_files()
    report = reporter(as_json=json_output, is_quiet=quiet)
    try:
        with limited(threads, memory):
            plan = read_and_plan(recipe, out, max_shard_bytes=shard_size, seed=seed)
            report.warnings(plan.warnings)
            if dry_run:
                _show_plan(plan, report)
            else:
                _run(plan, report, strict=strict, overwrite=overwrite, restart=restart, sync=sync)
    except LbrxError as error:
        report.failed(error)
        raise


def _allow_many_files() -> None:
    """Raise the soft limit of open files: macOS has 256, and every shard of every model is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _show_plan(plan: Plan, report: Reporter) -> None:
    from lbrx.plan.estimate import estimate

    report.planned(plan, estimate(plan))


def _run(plan: Plan, report: Reporter, *, strict: bool, overwrite: bool, restart: bool, sync: bool) -> None:
    from lbrx.execute import execute

    with report:
        result = execute(plan, strict=strict, overwrite=overwrite, restart=restart, sync=sync, progress=report.progress)
    report.done(result)
