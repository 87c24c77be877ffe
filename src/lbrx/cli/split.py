"""`lbrx split` and `lbrx join`: a GGUF model in shards, and in one file again."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

from lbrx.cli.options import DryRun, LimitOptions, RunOptions
from lbrx.cli.parameters import Argument, Option
from lbrx.cli.paths import check_model
from lbrx.cli.running import planning_for, reporting, write_output
from lbrx.errors import UsageError


def split(
    source: Annotated[Path, Argument("A GGUF model.", "IN")],
    out: Annotated[Path, Argument("The name of the shards: llama.gguf for llama-00001-of-00003.gguf, ...")],
    *,
    max_size: Annotated[
        str | None, Option(metavar="SIZE", help="Largest size of the tensors of a shard, such as 4GB.")
    ] = None,
    max_tensors: Annotated[int | None, Option(min=1, metavar="N", help="Most tensors in a shard.")] = None,
    dry_run: DryRun = False,
    limits: LimitOptions,
    options: RunOptions,
) -> None:
    """Split a GGUF model into shards.

    Tensors are copied as they are. llama.cpp and lbrx open the model by its first shard.

    Examples:

      lbrx split llama.gguf shards/llama.gguf --max-size 4GB

      lbrx split llama.gguf shards/llama.gguf --max-tensors 128
    """
    from lbrx.jobs.split.split import plan_split
    from lbrx.jobs.split.split import split as split_model

    write = partial(split_model, source, out, max_size=max_size, max_tensors=max_tensors)
    _run("splitting", source, write, partial(plan_split, source, out, max_size, max_tensors), dry_run, limits, options)


def join(
    source: Annotated[Path, Argument("A shard of the model, or the folder of the shards.", "IN")],
    out: Annotated[Path, Argument("The .gguf file to write.")],
    *,
    dry_run: DryRun = False,
    limits: LimitOptions,
    options: RunOptions,
) -> None:
    """Join the shards of a GGUF model into one file.

    Tensors are copied as they are.

    Examples:

      lbrx join llama-00001-of-00003.gguf llama.gguf

      lbrx join shards llama.gguf
    """
    from lbrx.jobs.split.split import join as join_model
    from lbrx.jobs.split.split import plan_join

    write = partial(join_model, source, out)
    _run("joining", source, write, partial(plan_join, source, out), dry_run, limits, options)


def _run(
    verb: str, source: Path, write: Any, plan: Any, dry_run: bool, limits: LimitOptions, options: RunOptions
) -> None:
    from lbrx.cli.dry_run import show_plan

    with reporting(verb, options) as report:
        check_model(source)
        if limits.shard_size is not None:
            raise UsageError("--shard-size is not used here; give --max-size")
        if not dry_run:
            write_output(write, report, limits, options)
            return
        with planning_for(limits, report):
            planned = plan()
            report.warnings(planned.warnings)
            show_plan(planned, options)
