"""`lbrx transplant`: give a model the tokenizer of another one."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from lbrx.cli.options import Device, DryRun, LimitOptions, RunOptions
from lbrx.cli.parameters import Argument, Option
from lbrx.cli.paths import check_output_name
from lbrx.cli.running import planning_for, reporting, write_output
from lbrx.cli.status import shown_progress
from lbrx.jobs.transplant.options import METHODS, PREFIXES, SUBWORDS, WEIGHTINGS, TransplantOptions

if TYPE_CHECKING:
    from lbrx.files.output.plan import OutputPlan
    from lbrx.jobs.transplant.transplant import Transplant


def transplant(
    model: Annotated[str, Argument("The model.")],
    donor: Annotated[str, Argument("The model whose tokenizer the output gets.")],
    out: Annotated[Path, Argument("The directory to write.")],
    *,
    method: Annotated[
        str, Option("--method", "-a", metavar="|".join(METHODS), help="How new rows are made.", values=lambda: METHODS)
    ] = "omp",
    k: Annotated[int, Option("--k", "-k", min=1, help="Shared tokens per new token (omp, common_interpolation).")] = 64,
    weights: Annotated[
        str,
        Option(
            "--weights",
            metavar="|".join(WEIGHTINGS),
            help="Coefficients of common_interpolation.",
            values=lambda: WEIGHTINGS,
        ),
    ] = "distance_proportional",
    cosine: Annotated[bool, Option("--cosine", help="Nearest by angle instead of distance.")] = False,
    subword: Annotated[
        str,
        Option(
            "--subword",
            metavar="|".join(SUBWORDS),
            help="How the method subword combines pieces.",
            values=lambda: SUBWORDS,
        ),
    ] = "mean",
    prefix_match: Annotated[
        str,
        Option(
            "--prefix-match",
            metavar="|".join(PREFIXES),
            help="Where a new token takes the row of the longest token it begins with.",
            values=lambda: PREFIXES,
        ),
    ] = "no",
    scale: Annotated[float, Option(help="Factor for new rows.")] = 1.0,
    noise: Annotated[float, Option(help="Standard deviation of noise added to new rows.")] = 0.0,
    dry_run: DryRun = False,
    limits: LimitOptions,
    seed: Annotated[int, Option(help="Random seed for noise and random rows.")] = 0,
    options: RunOptions,
    device: Device = "cpu",
) -> None:
    """Give a model the tokenizer of another model.

    Rows of the embedding and the head follow the donor's tokens. Tokens that both models have keep their rows. For
    other tokens, 'omp' describes the donor's row by at most K of its rows of shared tokens, and combines the model's
    rows of these tokens in the same way. Tokens are compared by their text.

    Examples:

      lbrx transplant model donor out

      lbrx transplant model donor out --dry-run

      lbrx transplant model donor out --method common_interpolation --k 8

      lbrx transplant model tokenizer-directory out --method subword
    """
    from lbrx.jobs.transplant.transplant import plan_transplant, plan_transplant_output
    from lbrx.jobs.transplant.transplant import transplant as transplant_tokenizer

    settings = TransplantOptions(method, k, weights, cosine, subword, prefix_match, scale, noise, seed)
    with reporting("writing", options) as report:
        check_output_name(out, None, directory_only=True)
        if not dry_run:
            with ExitStack() as status:
                progress = status.enter_context(shown_progress("approximating"))
                write = partial(
                    transplant_tokenizer,
                    model,
                    donor,
                    out,
                    **settings.identity(),
                    max_shard_bytes=limits.shard_size,
                    approximated=None if options.json_output or options.quiet else progress,
                )
                write_output(write, report, limits, options, status=status, device=device)
            return
        with planning_for(limits, report, device):
            decided = plan_transplant(model, donor, settings)
            plan = plan_transplant_output(decided, out, limits.shard_size)
            report.warnings(plan.warnings)
            _show(decided, plan, options)


def _show(decided: Transplant, plan: OutputPlan, options: RunOptions) -> None:
    from lbrx.cli.dry_run import show_plan

    matches = next(iter(decided.matches.values()))
    shared, new = matches.copied, matches.new_ids.size
    rows = [
        ("model", decided.model.label),
        ("donor", str(decided.donor)),
        ("method", decided.options.method),
        ("vocabulary", f"{decided.own.rows:,} -> {decided.size:,} rows"),
        ("tokens", f"{shared:,} keep their rows, {new:,} get new ones"),
    ]
    fields = {"method": decided.options.method, "vocabulary": decided.size, "kept_rows": shared, "new_rows": new}
    show_plan(plan, options, inputs=rows, fields=fields)
