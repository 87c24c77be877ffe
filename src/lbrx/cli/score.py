"""`lbrx score`: measure how well models predict a text."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from lbrx.cli.options import Device
from lbrx.cli.parameters import Argument, Option
from lbrx.cli.running import reporting_fallbacks
from lbrx.cli.status import shown_progress
from lbrx.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from lbrx.jobs.score.records import Score


_LESS_IMPORTANT = ("loss", "tokens", "bits/byte", "KL 99%", "tokens/s")  # hidden on a narrow terminal


def score(
    models: Annotated[list[Path], Argument("Model directories or .gguf files.", "MODEL...")],
    text: Annotated[Path | None, Option("--text", help="A UTF-8 text file to predict.")] = None,
    choices: Annotated[
        Path | None,
        Option("--choices", help="Multiple-choice questions to answer: JSON lines or parquet."),
    ] = None,
    limit: Annotated[int | None, Option("--limit", min=1, help="Ask only the first N questions.")] = None,
    reference: Annotated[
        Path | None, Option("--reference", help="Compare the predictions of the models with this model.")
    ] = None,
    context: Annotated[
        int | None,
        Option(min=2, help="Tokens per window (default: 512, or the context length of the model if shorter)."),
    ] = None,
    stride: Annotated[
        int | None,
        Option(min=1, help="Tokens between window starts (default: half a window)."),
    ] = None,
    windows: Annotated[
        Literal["overlapping", "llama.cpp"],
        Option("--windows", help="Score every token, or those that llama-perplexity scores."),
    ] = "overlapping",
    max_tokens: Annotated[int | None, Option(min=2, help="Use only the first N tokens of the text.")] = None,
    details: Annotated[
        bool,
        Option("--details", help="Also print intervals, and with --reference the statistics of all differences."),
    ] = False,
    plot: Annotated[Path | None, Option("--plot", help="Write a plot to this file, such as scores.png.")] = None,
    json_output: Annotated[bool, Option("--json", help="Print the results as JSON.")] = False,
    threads: Annotated[
        int | None,
        Option(
            min=1,
            help="Number of threads (default: all processors; on a cluster, up to four per task).",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        Option(
            metavar="ADDRESS",
            help="Run on a Ray cluster: 'auto' for the local one, or HOST:PORT.",
        ),
    ] = None,
    device: Device = "cpu",
) -> None:
    """Measure how well models predict a text.

    Predicts every token but the first once, from at least half a window of context. Perplexity is exp(loss); lower is
    better. With --reference, the table also shows how far each model's predictions are from the reference. Several
    models with one tokenizer are compared token by token: is the best one really better?

    Examples:

      lbrx score merged --text held_out.txt

      lbrx score a b merged --text held_out.txt --plot scores.png

      lbrx score model-q8_0.gguf model-q4_k_m.gguf --reference model --text held_out.txt

      lbrx score model-q4_k_m.gguf --reference model --text held_out.txt --details

      lbrx score model-q4_k_m.gguf --reference model --text held_out.txt --windows llama.cpp

      lbrx score model-q4_0.gguf --text held_out.txt --device metal

      lbrx score a b merged --choices arc_easy.jsonl --limit 200

      lbrx score /shared/a /shared/b --text held_out.txt --cluster auto
    """
    from lbrx.cli.console import printable as printable_line
    from lbrx.cli.generate import plain_warnings
    from lbrx.cli.score_details import comparison_as_json, details_table, score_as_json
    from lbrx.jobs.score.records import comparisons_with_best
    from lbrx.jobs.score.score import score as score_models

    if plot is not None:
        from lbrx.plots.heat_map import check_picture

        check_picture(plot)
    if (text is None) == (choices is None):
        raise UsageError("expected either --text or --choices")
    if choices is not None:
        _check_unused(
            reference=reference,
            context=context,
            stride=stride,
            windows=None if windows == "overlapping" else windows,
            max_tokens=max_tokens,
            details=details or None,
            plot=plot,
            cluster=cluster,
            device=None if device == "cpu" else device,
        )
        _score_choices(models, choices, limit, json_output, threads)
        return
    if limit is not None:
        raise UsageError("--limit needs --choices")
    assert text is not None
    with plain_warnings(), reporting_fallbacks(_warn), shown_progress("scoring") as progress:
        scores = score_models(
            models,
            text,
            reference=reference,
            context=context,
            stride=stride,
            windows=windows,
            max_tokens=max_tokens,
            progress=progress,
            threads=threads,
            cluster=cluster,
            device=device,
        )
    if plot is not None:
        from lbrx.files.checkpoint.opening import open_checkpoint
        from lbrx.plots.score_bars import draw_scores

        draw_scores(plot, scores, str(text), [open_checkpoint(one.model).nbytes for one in scores])
    comparisons = comparisons_with_best(scores)
    if json_output:
        report = {
            "text": str(text),
            "scores": [score_as_json(one) for one in scores],
            "comparisons": [comparison_as_json(one) for one in comparisons],
        }
        sys.stdout.write(json.dumps(report, indent=2) + "\n")
        return
    from lbrx.cli.console import output_console

    output_console().print(score_table(scores))
    _note_other_bytes(scores)
    for comparison in comparisons:
        sys.stdout.write(printable_line(str(comparison)) + "\n")
    if details:
        for one in scores:
            output_console().print(details_table(one))


def _note_other_bytes(scores: Sequence[Score]) -> None:
    """Tell if different tokenizers lead to different parts of the text."""
    sizes = [one.scored_bytes for one in scores]
    if min(sizes) < 0.99 * max(sizes):
        sys.stderr.write(
            f"note: the tokenizers differ, so {min(sizes):,} to {max(sizes):,} bytes of the text were scored; "
            "compare bits/byte on the same bytes: without --max-tokens and --windows\n"
        )


def _check_unused(**values: object) -> None:
    """Raise for options that have no effect on questions."""
    for name, value in values.items():
        if value is not None:
            raise UsageError(f"--{name.replace('_', '-')} needs --text; it cannot be used with --choices")


def _score_choices(
    models: Sequence[Path], choices: Path, limit: int | None, json_output: bool, threads: int | None
) -> None:
    from lbrx.cli.score_details import choices_as_json, choices_table
    from lbrx.jobs.score.choices import score_choices

    with shown_progress("answering") as progress:
        scores = score_choices(models, choices, limit=limit, progress=progress, threads=threads)
    if json_output:
        report = {"questions": str(choices), "scores": [choices_as_json(one) for one in scores]}
        sys.stdout.write(json.dumps(report, indent=2) + "\n")
        return
    from lbrx.cli.console import output_console

    output_console().print(choices_table(scores))


def _warn(warnings: Sequence[str]) -> None:
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)


def score_table(scores: Sequence[Score]) -> Table:
    """Return a table with one row per model and the best perplexity in bold."""
    from lbrx.cli.console import columns, printable
    from lbrx.cli.score_details import number_text

    has_reference = any(one.divergence is not None for one in scores)
    headings = ["model", "perplexity", "+-", "loss", "bits/byte", "tokens", "tokens/s"]
    table = columns(
        *headings,
        *(["KL", "KL 99%", "same top"] if has_reference else []),
        left=("model",),
        dropped_first=_LESS_IMPORTANT,
    )
    best = min(one.loss for one in scores)
    for one in scores:
        cells = [
            printable(str(one.model)),
            f"{one.perplexity:.4f}",
            number_text(one.perplexity_error, ".3f"),
            f"{one.loss:.4f}",
            f"{one.bits_per_byte:.4f}",
            f"{one.tokens:,}",
            f"{one.tokens_per_second:,.0f}",
        ]
        if has_reference:
            cells += _divergence_cells(one)
        table.add_row(*cells, style="bold" if one.loss == best and len(scores) > 1 else None)
    return table


def _divergence_cells(one: Score) -> list[str]:
    if one.divergence is None:
        return ["reference", "", ""]
    divergence = one.divergence
    return [f"{divergence.mean:.5f}", f"{divergence.percentile_99:.4f}", f"{divergence.same_top:.2%}"]
