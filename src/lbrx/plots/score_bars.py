"""A picture of scores: bars of perplexity with their errors, and of the divergence from a reference."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from lbrx.jobs.score.records import Score
from lbrx.plots.heat_map import check_picture, write_figure

_BAR_COLOUR = "#7fb8c9"
_BEST_COLOUR = "#1f6f8b"
_FAINT = "#555555"


def draw_scores(path: Path, scores: Sequence[Score], text_name: str, model_bytes: Sequence[int]) -> None:
    """Draw scores into a file, atomically: a bar for each model, the best one darker.

    With a reference there are also the divergence from it, and size against quality: a point for each model, with the
    sizes in ``model_bytes``.
    """
    check_picture(path)
    write_figure(path, _figure(scores, text_name, model_bytes))


def _figure(scores: Sequence[Score], text_name: str, model_bytes: Sequence[int]) -> Any:
    new_figure: Any = import_module("matplotlib.figure").Figure
    compared = [one for one in scores if one.divergence is not None]
    panels = 3 if compared else 1
    figure = new_figure(
        figsize=(4.2 + 3.6 * panels, max(0.42 * len(scores) + 1.7, 3.6 if compared else 0.0)), layout="constrained"
    )
    axes = figure.subplots(1, panels, squeeze=False)[0]
    labels = short_names([one.model for one in scores])
    errors = [one.perplexity_error for one in scores]
    _bars(axes[0], labels, [one.perplexity for one in scores], errors)
    axes[0].set_xlabel("perplexity, with its standard error (lower is better)", fontsize=9)
    if compared:
        means = [0.0 if one.divergence is None else one.divergence.mean for one in scores]
        _bars(axes[1], [""] * len(scores), means)
        axes[1].set_xlabel("divergence from the reference, nats per token", fontsize=9)
        _points(axes[2], labels, [nbytes / 1e6 for nbytes in model_bytes], means)
    figure.suptitle(_finding(scores, labels), fontsize=14, fontweight="bold", x=0.02, ha="left")
    axes[0].set_title(f"{text_name}, {scores[0].tokens:,} tokens", fontsize=10, color=_FAINT, loc="left", pad=10)
    return figure


def _finding(scores: Sequence[Score], labels: Sequence[str]) -> str:
    """The title: the model that is nearest to the reference, or without one the best."""
    distances = {
        label: one.divergence.mean for label, one in zip(labels, scores, strict=True) if one.divergence is not None
    }
    if distances:
        nearest = min(distances, key=distances.__getitem__)
        return f"{nearest} is nearest to the reference: {distances[nearest]:.2g} nats per token"
    ranked = sorted(zip(scores, labels, strict=True), key=lambda row: row[0].loss)
    best, name = ranked[0]
    if len(ranked) == 1:
        return f"{name} has a perplexity of {best.perplexity:.4g}"
    is_clear = ranked[1][0].loss - best.loss > best.loss_error
    return f"{name} predicts the text best" + ("" if is_clear else f", within the error of {ranked[1][1]}")


def _points(axis: Any, labels: Sequence[str], megabytes: Sequence[float], divergences: Sequence[float]) -> None:
    """Size against quality, on a scale of powers of ten; the reference has no divergence and is left out."""
    shown = [row for row in zip(labels, megabytes, divergences, strict=True) if row[2] > 0]
    axis.scatter([row[1] for row in shown], [row[2] for row in shown], s=42, color=_BEST_COLOUR, zorder=3)
    for label, size, divergence in shown:
        axis.annotate(label, (size, divergence), xytext=(6, 5), textcoords="offset points", fontsize=8)
    if shown:
        axis.set_yscale("log")
    axis.margins(x=0.25, y=0.2)
    axis.set_xlabel("size in MB", fontsize=9)
    axis.set_ylabel("divergence (lower is better)", fontsize=9)
    axis.grid(color="#e6e6e6", linewidth=0.8)
    axis.tick_params(which="both", labelsize=8.5)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _bars(
    axis: Any,
    labels: Sequence[str],
    values: Sequence[float],
    errors: Sequence[float] | None = None,
) -> None:
    positive = [index for index, value in enumerate(values) if value > 0]
    best = min(positive, key=values.__getitem__, default=None) if len(positive) > 1 else None
    colours = [_BEST_COLOUR if index == best else _BAR_COLOUR for index in range(len(values))]
    axis.barh(range(len(values)), values, xerr=errors, color=colours, height=0.68, ecolor="#333333", capsize=2.5)
    longest = max(values)
    for index, value in enumerate(values):
        beyond = value + (errors[index] if errors is not None else 0.0) + 0.015 * longest
        axis.text(beyond, index, f"{value:.4g}" if value else "reference", va="center", fontsize=8.5, color="#222222")
    axis.set_yticks(range(len(values)), labels, fontsize=9.5)
    axis.set_xlim(0, 1.16 * longest if longest > 0 else 1.0)
    axis.invert_yaxis()
    axis.tick_params(axis="y", length=0)
    axis.tick_params(axis="x", labelsize=8.5)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)


def short_names(paths: Sequence[Path]) -> list[str]:
    """The last parts of paths: as many as it takes to tell them apart.

    >>> short_names([Path("out/a/model.gguf"), Path("out/b/model.gguf")])
    ['a/model.gguf', 'b/model.gguf']
    """
    most = max(len(path.parts) for path in paths)
    for count in range(1, most):
        names = ["/".join(path.parts[-count:]) for path in paths]
        if len(set(names)) == len(set(paths)):
            return names
    return [str(path) for path in paths]
