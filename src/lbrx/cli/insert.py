"""`lbrx insert`: put a language model into a vision-language model."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import Annotated

from lbrx.cli.options import Device, DryRun, LimitOptions, RunOptions
from lbrx.cli.parameters import Argument
from lbrx.cli.paths import check_model
from lbrx.cli.running import planning_for, reporting, write_output


def insert(
    language_model: Annotated[Path, Argument("The directory of a language model, such as a merge.", "LANGUAGE_MODEL")],
    parent: Annotated[Path, Argument("The directory of the vision-language model.")],
    out: Annotated[Path, Argument("The directory to write.")],
    *,
    dry_run: DryRun = False,
    limits: LimitOptions,
    options: RunOptions,
    device: Device = "cpu",
) -> None:
    """Put a language model into a vision-language model.

    The output is PARENT with the weights of another language model of the same architecture. Tower, projector, config
    and tokenizer are those of PARENT. Memory does not grow with the model. If the run stops, run the same command to
    resume.

    Examples:

      lbrx insert merged-gemma gemma-3-4b-it gemma-3-4b-merged

      lbrx insert merged-gemma gemma-3-4b-it gemma-3-4b-merged --dry-run
    """
    from lbrx.cli.dry_run import show_plan
    from lbrx.jobs.insert.insert import insert as insert_model
    from lbrx.jobs.insert.insert import plan_insertion

    write = partial(insert_model, language_model, parent, out, max_shard_bytes=limits.shard_size)
    with reporting("inserting", options) as report:
        check_model(language_model)
        check_model(parent)
        if not dry_run:
            command = shlex.join(["lbrx", "verify", str(out)])
            write_output(write, report, limits, options, device=device, next_command=command)
            return
        with planning_for(limits, report, device):
            plan = plan_insertion(*write.args, **write.keywords)
            report.warnings(plan.warnings)
            show_plan(plan, options)
