"""`lbrx score`: how good models are at a text."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from lbrx.cli.options import Device
from lbrx.cli.parameters import Argument, Option
from lbrx.cli.running import reporting_fallbacks
from lbrx.cli.status import shown_progress

if TYPE_CHECKING:
    from rich.table import Table

    from lbrx.jobs.score.score import Score


_LESS_IMPORTANT = ("loss", "tokens", "bits/byte", "KL 99%", "tokens/s")  # left out of narrow tables


def score(
    models: Annotated[list[Path], Argument("Directories of models, or .gguf files.", "MODEL...")],
    text: Annotated[Path, Option("--text", help="The text to predict, a file in UTF-8.")],
    reference: Annotated[
        Path | None, Option("--reference", help="The model whose predictions the others are compared with.")
    ] = None,
    context: Annotated[
        int | None,
        Option(min=2, help="Tokens per window; 512 by default, or what the model has."),
    ] = None,
    stride: Annotated[
        int | None,
        Option(min=1, help="Tokens from window to window; half a window by default."),
    ] = None,
    max_tokens: Annotated[int | None, Option(min=2, help="Use only so many tokens of the text.")] = None,
    plot: Annotated[Path | None, Option("--plot", help="Draw a picture into this file, such as scores.png.")] = None,
    json_output: Annotated[bool, Option("--json", help="Print the numbers as JSON.")] = False,
    threads: Annotated[
        int | None,
        Option(
            min=1,
            help="Processors to use; all of them by default, on a cluster up to four for a task.",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        Option(
            metavar="ADDRESS",
            help="Compute on a Ray cluster: 'auto' for the one of this machine, or HOST:PORT.",
        ),
    ] = None,
    device: Device = "cpu",
) -> None:
    """Measure how well models predict a text.

    Every token but the first is predicted once, from at least half a window of those before it. Perplexity is
    exp(loss); lower is better. With a reference, the table also tells how far each model's predictions are from it.

    Examples:

      lbrx score merged --text held_out.txt

      lbrx score a b merged --text held_out.txt --plot scores.png

      lbrx score model-q8_0.gguf model-q4_k_m.gguf --reference model --text held_out.txt

      lbrx score model-q4_0.gguf --text held_out.txt --device metal

      lbrx score /shared/a /shared/b --text held_out.txt --cluster auto
    """
    from lbrx.jobs.score.score import score as score_models

    if plot is not None:
        from lbrx.plots.heat_map import check_picture

        check_picture(plot)
    with reporting_fallbacks(_warn), shown_progress("scoring") as progress:
        scores = score_models(
            models,
            text,
            reference=reference,
            context=context,
            stride=stride,
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
    if json_output:
        sys.stdout.write(json.dumps({"text": str(text), "scores": [as_json(one) for one in scores]}, indent=2) + "\n")
        return
    from lbrx.cli.console import output_console

    output_console().print(score_table(scores))


def _warn(warnings: Sequence[str]) -> None:
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)


def score_table(scores: Sequence[Score]) -> Table:
    """A row for each model, the best perplexity in bold."""
    from lbrx.cli.console import columns, printable

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
            f"{one.perplexity_error:.3f}",
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


def as_json(one: Score) -> dict[str, Any]:
    """A score in types that JSON has; numbers that it lacks are null."""
    values: dict[str, Any] = {
        "model": str(one.model),
        "tokens": one.tokens,
        "loss": one.loss,
        "loss_error": one.loss_error,
        "perplexity": one.perplexity,
        "perplexity_error": one.perplexity_error,
        "bits_per_byte": one.bits_per_byte,
        "seconds": one.seconds,
        "tokens_per_second": one.tokens_per_second,
    }
    if one.divergence is not None:
        values["kl_mean"] = one.divergence.mean
        values["kl_99_percent"] = one.divergence.percentile_99
        values["same_top"] = one.divergence.same_top
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in values.items()
    }
