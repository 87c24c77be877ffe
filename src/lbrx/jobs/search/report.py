"""The report of a search, in Markdown: what was found, what mattered, and how it compares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from lbrx.base.atomic_write import write_atomically
from lbrx.jobs.search.loop import SearchLoop, Trial, pareto_front

REPORT_NAME = "report.md"
_LEAST_TRIALS = 8
_MOST_FRONT_ROWS = 20
_SAME = 0.00005  # figures that differ by less are printed alike
_IDLE = 0.05  # of the variance: what explains less hardly matters
MIDDLE = "middle of the ranges"


def write_report(out: Path, loop: SearchLoop, held_out: Mapping[str, Mapping[str, float]]) -> None:
    """Write the report of a search into its directory."""
    write_atomically(out / REPORT_NAME, ("\n".join(_lines(loop, held_out)) + "\n").encode())


def _lines(loop: SearchLoop, held_out: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    assert loop.best is not None
    settings, first = loop.settings, loop.trials[0]
    whole = loop.finished
    yield "# Search"
    yield ""
    yield (
        f"{len(loop.trials)} candidates, {len(whole)} of them measured on all texts. Optimizer {settings.optimizer}, "
        f"seed {settings.seed}, {settings.max_tokens} tokens per text."
    )
    yield ""
    yield from _finding(loop, first)
    for name, limit in loop.exceeded(loop.best.figures).items():
        yield f"No candidate keeps all limits. The best one exceeds that of {name}, {limit:g}."
        yield ""
    yield "## Best recipe"
    yield ""
    yield "```yaml"
    yield loop.space.recipe(loop.best.values).rstrip()
    yield "```"
    yield ""
    yield "## Figures"
    yield ""
    yield from _table(
        ["candidate", *loop.best.figures],
        [[name, *_numbers(trial.figures)] for name, trial in (("best", loop.best), (MIDDLE, first))],
    )
    if held_out:
        yield "## Texts that were not searched on"
        yield ""
        names = list(next(iter(held_out.values())))
        yield from _table(["model", *names], [[label, *_numbers(figures)] for label, figures in held_out.items()])
        yield from (_held_out_finding(held_out, name) for name in names)
        yield ""
    if settings.goal == "pareto":
        yield "## Pareto front"
        yield ""
        rows = [[f"{trial.number + 1}", *_numbers(trial.figures)] for trial in pareto_front(whole)[:_MOST_FRONT_ROWS]]
        yield from _table(["candidate", *loop.best.figures], rows)
    yield from _importance_section(loop)


def _finding(loop: SearchLoop, first: Trial) -> Iterator[str]:
    assert loop.best is not None
    if len(first.measured) < loop.settings.rungs:
        return
    if loop.best is first:
        yield "No candidate is better than the middle of the ranges, which is number 1."
    else:
        gain = loop.score(first.figures) - loop.score(loop.best.figures)
        yield f"The best candidate is number {loop.best.number + 1}. The middle of the ranges scores {gain:.4f} worse."
    edges = [
        dimension.name
        for dimension, value in zip(loop.space.dimensions, loop.best.values, strict=True)
        if not dimension.choices and value in (dimension.low, dimension.high) and dimension.low < dimension.high
    ]
    if edges:
        yield f"At the end of their range: {', '.join(edges)}. A wider range may give a better result."
    yield ""


def _held_out_finding(held_out: Mapping[str, Mapping[str, float]], name: str) -> str:
    """Say how the best candidate compares with the inputs and with the middle of the ranges on one text.

    >>> losses = {"best": {"t": 3.5}, MIDDLE: {"t": 3.6}, "a": {"t": 3.25}, "b": {"t": 4.0}}
    >>> _held_out_finding(losses, "t")
    'On t, the best candidate is 0.1000 better than the middle of the ranges, and 0.2500 worse than a.'
    >>> _held_out_finding({"best": {"t": 3.5}, MIDDLE: {"t": 3.5}}, "t")
    'On t, the best candidate is as good as the middle of the ranges.'
    """
    best = held_out["best"][name]
    gain = held_out[MIDDLE][name] - best
    inputs = {label: figures[name] for label, figures in held_out.items() if label not in ("best", MIDDLE)}
    text = f"On {name}, the best candidate is {_compared(gain)} the {MIDDLE}"
    if inputs:
        nearest = min(inputs, key=lambda label: inputs[label])
        text += f", and {_compared(inputs[nearest] - best)} {nearest}"
    return f"{text}." if gain > -_SAME else f"{text}. The gain does not carry over: the search has fitted its texts."


def _compared(gain: float) -> str:
    if abs(gain) < _SAME:
        return "as good as"
    return f"{abs(gain):.4f} {'better' if gain > 0 else 'worse'} than"


def _importance_section(loop: SearchLoop) -> Iterator[str]:
    found = importances(loop)
    if not found:
        return
    yield "## What mattered"
    yield ""
    ranked = sorted(found.items(), key=lambda pair: -pair[1])
    (name, share), idle = ranked[0], [name for name, share in ranked if round(share, 2) < _IDLE]
    if name not in idle:
        yield f"{name} mattered most: alone it explains {share:.0%} of the variance of the scores."
    if idle:
        yield f"Little depends on {', '.join(idle)} (less than {_IDLE:.0%})."
    yield ""
    yield (
        "Share of the variance of the scores that each value explains alone, with a parabola or by choice, beyond what "
        "chance explains. Shares overlap if values were changed together."
    )
    yield ""
    yield from _table(["value", "share"], [[name, f"{share:.0%}"] for name, share in ranked])


def importances(loop: SearchLoop) -> dict[str, float]:
    """Return the share of the variance of the scores on the first rung that each dimension explains alone."""
    trials = [trial for trial in loop.trials if trial.measured]
    scores = np.array([loop.score(trial.measured[0].figures) for trial in trials])
    usable = np.isfinite(scores) & (scores < np.median(scores) + 10 * max(np.median(scores), 1.0))
    if usable.sum() < _LEAST_TRIALS or scores[usable].std() == 0:
        return {}
    scores = scores[usable]
    found = {}
    for number, dimension in enumerate(loop.space.dimensions):
        values = np.array([float(trial.values[number]) for trial in trials])[usable]
        if dimension.choices:
            columns = np.stack([values == choice for choice in range(dimension.choices)], axis=1).astype(np.float64)
        else:
            columns = np.stack([np.ones_like(values), values, values * values], axis=1)
        solution = np.linalg.lstsq(columns, scores, rcond=None)[0]
        rest = scores - columns @ solution
        free = len(scores) - int(np.linalg.matrix_rank(columns))
        by_chance = (len(scores) - 1) / max(free, 1)  # more terms explain more of any numbers
        found[dimension.name] = float(max(1.0 - rest.var() / scores.var() * by_chance, 0.0))
    return found


def _numbers(figures: Mapping[str, float]) -> list[str]:
    return [f"{value:.4f}" for value in figures.values()]


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(headings)} |"
    yield f"|{'---|' * len(headings)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
    yield ""
