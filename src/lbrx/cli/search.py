"""`lbrx search`: find the best values of a recipe."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from lbrx.cli.options import Cluster
from lbrx.cli.parameters import Argument, Option
from lbrx.cli.status import shown_progress
from lbrx.errors import UsageError

if TYPE_CHECKING:
    from lbrx.jobs.search.search import SearchResult

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def search(
    recipe: Annotated[Path, Argument("A recipe with ranges such as {search: [0, 1]}, or a genome file.", "RECIPE")],
    out: Annotated[Path, Argument("The directory for the journal, the best recipe and the report.")],
    *,
    text: Annotated[list[Path] | None, Option("--text", help="A text to predict. Repeat for several.")] = None,
    choices: Annotated[Path | None, Option("--choices", help="Multiple-choice questions to answer.")] = None,
    function: Annotated[
        str | None, Option("--function", metavar="FILE.py:NAME", help="A function of model and tokenizer to minimize.")
    ] = None,
    measure: Annotated[
        Literal["loss", "kl"], Option("--measure", help="Loss on the texts, or divergence from --reference.")
    ] = "loss",
    reference: Annotated[Path | None, Option("--reference", help="The model to stay close to.")] = None,
    goal: Annotated[
        Literal["mean", "worst", "pareto"], Option("--goal", help="What to minimize if there are several figures.")
    ] = "mean",
    at_most: Annotated[
        list[str] | None, Option("--at-most", metavar="FIGURE=X", help="Reject candidates with a higher figure.")
    ] = None,
    held_out: Annotated[
        list[Path] | None, Option("--held-out", help="A text for the report only, to check the result.")
    ] = None,
    optimizer: Annotated[
        Literal["auto", "quadratic", "cma", "tpe", "coordinate", "random", "soup"],
        Option("--optimizer", help="How candidates are chosen.", metavar="NAME"),
    ] = "auto",
    candidates: Annotated[int, Option("--candidates", min=1, help="The number of candidates.")] = 100,
    budget: Annotated[
        str | None, Option("--budget", metavar="TIME", help="Stop after this time, such as 30m or 2h.")
    ] = None,
    seed: Annotated[int, Option("--seed", min=0, help="Seed of the optimizer and of random merge methods.")] = 0,
    context: Annotated[int, Option("--context", min=2, help="Tokens per window.")] = 256,
    max_tokens: Annotated[
        int, Option("--max-tokens", min=2, help="Tokens of each text for the best candidates.")
    ] = 2048,
    rungs: Annotated[
        int, Option("--rungs", min=1, help="Steps from a few tokens to all; 1 measures every candidate on all.")
    ] = 3,
    merge: Annotated[bool, Option("--merge", help="Also write the merged model, to OUT/merged.")] = False,
    quantize: Annotated[
        str | None, Option("--quantize", metavar="TYPE", help="Write the merged model as a GGUF file of this type.")
    ] = None,
    allow_code: Annotated[bool, Option("--allow-code", help="Run Python files that are named.")] = False,
    restart: Annotated[bool, Option("--restart", help="Forget the journal of an earlier search in OUT.")] = False,
    json_output: Annotated[bool, Option("--json", help="Print the result as JSON.")] = False,
    threads: Annotated[int | None, Option(min=1, help="Number of threads (default: all processors).")] = None,
    cluster: Cluster = None,
) -> None:
    """Find the values of a recipe whose merge scores best.

    A value of the recipe can be a range, {search: [0, 1]}, a gradient over layers, {search: [0, 1], points: 4}, or a
    choice, {choose: [ties, linear]}. Candidates are merged in memory, layer by layer, and never written. The best
    recipe is written to OUT/best.yml, a report to OUT/report.md. Run the same command to resume an interrupted search.

    Examples:

      lbrx search recipe.yml found --text prose.txt --text code.txt --held-out other.txt

      lbrx search recipe.yml found --text prose.txt --budget 30m --merge --quantize q4_k_m

      lbrx search recipe.yml found --text code.txt --text prose.txt --at-most prose.txt=2.9

      lbrx search recipe.yml found --text prose.txt --measure kl --reference base --optimizer coordinate

      lbrx search recipe.yml found --choices arc_easy.jsonl --candidates 200 --cluster auto
    """
    from lbrx.jobs.search.search import search as search_recipe

    with shown_progress("searching") as progress:
        result = search_recipe(
            recipe,
            out,
            texts=text or [],
            choices=choices,
            function=function,
            measure=measure,
            reference=reference,
            goal=goal,
            limits=_limits(at_most or []),
            held_out=held_out or [],
            optimizer=optimizer,
            candidates=candidates,
            budget_seconds=None if budget is None else _seconds(budget),
            seed=seed,
            context=context,
            max_tokens=max_tokens,
            rungs=rungs,
            allow_code=allow_code,
            restart=restart,
            threads=threads,
            cluster=cluster,
            progress=progress,
        )
    picture = _drawn(result)
    model = _merged(result, recipe.parent, quantize, seed, allow_code) if merge or quantize else None
    if json_output:
        sys.stdout.write(json.dumps(_as_json(result, model), indent=2) + "\n")
        return
    _print(result, picture, model)


def _limits(texts: list[str]) -> dict[str, float]:
    limits = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        try:
            limits[name] = float(number)
        except ValueError:
            limits[name] = math.nan
        if not name or not math.isfinite(limits[name]):
            raise UsageError(f"--at-most {text!r} is not a limit; expected FIGURE=NUMBER, such as prose.txt=2.9")
    return limits


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if found is None:
        raise UsageError(f"--budget {text!r} is not a time; expected a number and s, m or h, such as 30m")
    return float(found[1]) * _UNITS[found[2]]


def _drawn(result: SearchResult) -> Path | None:
    """Draw the picture of the search if matplotlib is installed."""
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        return None
    from lbrx.plots.search_plot import draw_search

    picture = result.out / "search.png"
    draw_search(picture, result)
    return picture


def _merged(result: SearchResult, directory: Path, quantize: str | None, seed: int, allow_code: bool) -> Path:
    """Merge the best recipe. Models are found relative to the original recipe, as in the search."""
    from lbrx.jobs.search.merged import merge_best

    return merge_best(result, directory, quantize=quantize, seed=seed, allow_code=allow_code)


def _print(result: SearchResult, picture: Path | None, model: Path | None) -> None:
    from lbrx.cli.console import columns, output_console, printable

    if not result.is_complete:
        print("interrupted: this is the best so far; run the same command to resume", file=sys.stderr)
    for name, limit in result.exceeded.items():
        print(
            printable(f"warning: no candidate keeps all limits; the best one exceeds {name}={limit:g}"), file=sys.stderr
        )
    if not math.isfinite(result.score):
        print("warning: no candidate has a finite score", file=sys.stderr)
    table = columns("value", "best", left=("value",))
    for name, value in result.values.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        table.add_row(printable(name), f"{value:g}" if is_number else printable(f"{value!s:.60}"))
    for name, value in result.figures.items():
        table.add_row(printable(name), f"{value:.4f}")
    output_console().print(table)
    for label, figures in result.held_out.items():
        figures_text = ", ".join(f"{name} {value:.4f}" for name, value in figures.items())
        print(printable(f"not searched on: {label}: {figures_text}"))
    files = [result.out / "best.yml", result.out / "report.md", picture, model]
    print(f"{result.candidates} candidates; wrote {', '.join(printable(str(path)) for path in files if path)}")


def _as_json(result: SearchResult, model: Path | None) -> Mapping[str, Any]:
    return {
        "out": str(result.out),
        "recipe": result.recipe,
        "values": dict(result.values),
        "figures": {name: value if math.isfinite(value) else None for name, value in result.figures.items()},
        "score": result.score if math.isfinite(result.score) else None,
        "exceeded": dict(result.exceeded),
        "candidates": result.candidates,
        "complete": result.is_complete,
        "front": [{"values": dict(values), "figures": dict(figures)} for values, figures in result.front],
        "held_out": {label: dict(figures) for label, figures in result.held_out.items()},
        "merged": None if model is None else str(model),
    }
