"""A picture of a search: the scores of candidates, what mattered, and the Pareto front."""

from __future__ import annotations

from importlib import import_module
from itertools import accumulate
from pathlib import Path
from typing import Any

from lbrx.jobs.search.search import SearchResult
from lbrx.plots.heat_map import write_figure

_POINT, _LINE, _FAINT = "#7fb8c9", "#1f6f8b", "#e6e6e6"
_MOST_BARS = 16


def draw_search(path: Path, result: SearchResult) -> None:
    """Draw a search into a file, atomically."""
    write_figure(path, _figure(result))


def _figure(result: SearchResult) -> Any:
    new_figure: Any = import_module("matplotlib.figure").Figure
    has_front = bool(result.front) and len(result.figures) > 1
    panels = 1 + bool(result.importances) + has_front
    figure = new_figure(figsize=(4.6 * panels + 0.6, 4.2), layout="constrained")
    axes = list(figure.subplots(1, panels, squeeze=False)[0])
    title = f"{result.candidates} candidates, best score {result.score:.4f}"
    figure.suptitle(title, fontsize=13, fontweight="bold", x=0.02, ha="left")
    _convergence(axes.pop(0), result)
    if result.importances:
        _importance(axes.pop(0), result)
    if has_front:
        _front(axes.pop(0), result)
    return figure


def _convergence(axis: Any, result: SearchResult) -> None:
    numbers = [number + 1 for number, _ in result.history]
    scores = [score for _, score in result.history]
    axis.scatter(numbers, scores, s=16, color=_POINT, zorder=2, label="measured on all texts")
    axis.step(numbers, list(accumulate(scores, min)), where="post", color=_LINE, zorder=3, label="best so far")
    axis.set_xlabel("candidate", fontsize=9)
    axis.set_ylabel("score (lower is better)", fontsize=9)
    axis.legend(fontsize=8, frameon=False)
    _plain(axis)


def _importance(axis: Any, result: SearchResult) -> None:
    ranked = sorted(result.importances.items(), key=lambda pair: -pair[1])[:_MOST_BARS]
    axis.barh(range(len(ranked)), [share for _, share in ranked], color=_LINE, height=0.65)
    axis.set_yticks(range(len(ranked)), [name for name, _ in ranked], fontsize=8)
    axis.invert_yaxis()
    axis.set_xlabel("share of the variance that a value explains alone", fontsize=9)
    _plain(axis)


def _front(axis: Any, result: SearchResult) -> None:
    first, second = list(result.figures)[:2]
    points = [(figures[first], figures[second]) for _, figures in result.front]
    axis.plot(*zip(*points, strict=True), marker="o", markersize=5, color=_LINE)
    axis.set_xlabel(first, fontsize=9)
    axis.set_ylabel(second, fontsize=9)
    axis.set_title("Pareto front", fontsize=9, loc="left")
    _plain(axis)


def _plain(axis: Any) -> None:
    axis.grid(color=_FAINT, linewidth=0.8)
    axis.set_axisbelow(True)
    axis.tick_params(labelsize=8)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
