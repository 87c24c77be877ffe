"""A picture of sizes of outputs against their divergence from the source."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from lbrx.plots.heat_map import check_picture, write_figure

_COLOUR = "#1f6f8b"
_GREY = "#555555"


class Point(NamedTuple):
    """An output: its size, and its divergence in nats per token with the ends of an interval."""

    label: str
    nbytes: int
    divergence: float
    low: float
    high: float


def draw_points(path: Path, points: Sequence[Point], title: str, front: Sequence[Point] = ()) -> None:
    """Draw points into a file, atomically, on a scale of powers of ten; ``front`` is drawn as a line.

    Points without divergence are left out.
    """
    check_picture(path)
    write_figure(path, _figure([each for each in points if each.divergence > 0], title, front))


def _figure(points: Sequence[Point], title: str, front: Sequence[Point]) -> Any:
    new_figure: Any = import_module("matplotlib.figure").Figure
    figure = new_figure(figsize=(7.5, 4.8), layout="constrained")
    axis = figure.subplots()
    if front:
        axis.plot([each.nbytes / 1e6 for each in front], [each.divergence for each in front], color=_GREY, linewidth=1)
    for each in points:
        size = each.nbytes / 1e6
        reach = [[max(each.divergence - each.low, 0.0)], [max(each.high - each.divergence, 0.0)]]
        axis.errorbar([size], [each.divergence], yerr=reach, fmt="o", color=_COLOUR, capsize=3, markersize=6)
        axis.annotate(each.label, (size, each.divergence), xytext=(7, 5), textcoords="offset points", fontsize=9)
    if points or front:
        axis.set_yscale("log")
    axis.margins(x=0.15, y=0.15)
    axis.set_xlabel("size in MB")
    axis.set_ylabel("KL divergence in nats per token (lower is better)")
    axis.set_title(title, loc="left", fontweight="bold")
    axis.grid(color="#e6e6e6", linewidth=0.8)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    return figure
