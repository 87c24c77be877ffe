"""Pictures, drawn by matplotlib, which is imported only when one is wanted."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.base.atomic_write import partial_file, replace
from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import FileError, UsageError

PICTURE_ENDINGS = (".png", ".svg", ".pdf")
_DOTS_PER_INCH = 150
_MAX_ROWS_WITH_NUMBERS = 60
_MAX_LABELLED_ROWS = 64
# Cells that are this many times stronger than nearly all others get the last colour, so that they hide nothing.
_OUTLIER_FACTOR = 1.5
_USUAL_PERCENTILE = 98.0
_LEAST_SPAN = 1e-9  # of a scale of colours


@dataclass(frozen=True, slots=True)
class Panel:
    """A grid of cells with a label for each row and column; NaN cells stay empty."""

    rows: Sequence[str]
    columns: Sequence[str]
    values: npt.NDArray[np.float64]
    row_title: str = ""


@dataclass(frozen=True, slots=True)
class HeatMap:
    """A picture of one or more panels that share one scale of colours.

    ``high_is_strong``: large values get the strong colours; otherwise small ones do. ``is_signed``: values from -1 to
    1, in two colours with white at 0.
    """

    panels: Sequence[Panel]
    title: str
    subtitle: str
    scale_label: str
    cell_text: Callable[[float], str]
    high_is_strong: bool = True
    is_signed: bool = False


def check_picture(path: Path) -> None:
    """Raise now if a picture could not be drawn later.

    >>> check_picture(Path("heat.docx"))
    Traceback (most recent call last):
    lbrx.errors.UsageError: heat.docx: expected a picture that ends in .png, .svg, .pdf
    """
    if path.suffix.lower() not in PICTURE_ENDINGS:
        raise UsageError(f"{path}: expected a picture that ends in {', '.join(PICTURE_ENDINGS)}")
    parent = next(each for each in path.parents if each.exists())
    if not parent.is_dir():
        raise FileError(f"{parent}: is a file; expected a directory to write to")
    if find_spec("matplotlib") is None:
        raise UsageError("pictures need matplotlib, which is not installed: pip install 'lbrx[plot]'")


def draw_heat_map(path: Path, heat_map: HeatMap) -> None:
    """Draw a heat map into a file, atomically."""
    check_picture(path)
    write_figure(path, _figure(heat_map))


def write_figure(path: Path, figure: Any) -> None:
    """Write a figure of matplotlib into a file, atomically. Directories above it are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with partial_file(path) as drawn:
        options = {"dpi": _DOTS_PER_INCH, "bbox_inches": "tight", "pad_inches": 0.25, "facecolor": "white"}
        figure.savefig(drawn, format=path.suffix[1:].lower(), **options)
        replace(drawn, path)


def _figure(heat_map: HeatMap) -> Any:
    colormaps: Any = import_module("matplotlib").colormaps
    new_figure: Any = import_module("matplotlib.figure").Figure
    panels = heat_map.panels
    heights = [_panel_height(panel) for panel in panels]
    columns = max(len(panel.columns) for panel in panels)
    size = (max(0.78 * columns + 2.4, 6.5), sum(heights) + 1.1 * len(panels) + 0.6)
    figure = new_figure(figsize=size, layout="constrained")
    figure.get_layout_engine().set(h_pad=0.1, hspace=0.06)
    name = "RdBu" if heat_map.is_signed else "YlGnBu" if heat_map.high_is_strong else "YlGnBu_r"
    colours = colormaps[name].with_extremes(bad="#f2f2f2")
    low, high, extend = (-1.0, 1.0, "neither") if heat_map.is_signed else _scale(panels, heat_map.high_is_strong)
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    image = None
    for panel, axis in zip(panels, axes, strict=True):
        image = axis.imshow(np.ma.masked_invalid(panel.values), cmap=colours, vmin=low, vmax=high, aspect="auto")
        axis.set_xlim(-0.5, columns - 0.5)  # cells are equally wide in all panels
        _label(axis, panel)
        if len(panel.rows) <= _MAX_ROWS_WITH_NUMBERS:
            _write_cells(axis, panel, image, heat_map.cell_text)
    bar = figure.colorbar(image, ax=list(axes), extend=extend, shrink=0.85, aspect=32, pad=0.02)
    bar.set_label(heat_map.scale_label, fontsize=10)
    bar.ax.yaxis.set_major_formatter(lambda value, _place: heat_map.cell_text(value))
    bar.ax.tick_params(labelsize=9)
    bar.outline.set_visible(False)
    figure.suptitle(heat_map.title, fontsize=14, fontweight="bold", x=0.02, ha="left")
    axes[0].set_title(heat_map.subtitle, fontsize=10, color="#555555", loc="left", pad=10)
    return figure


def _panel_height(panel: Panel) -> float:
    """Inches: rows of readable numbers, lower ones where there are too many for numbers."""
    rows = len(panel.rows)
    return rows * (0.27 if rows <= _MAX_ROWS_WITH_NUMBERS else 0.12) + 0.15


def _scale(panels: Sequence[Panel], high_is_strong: bool) -> tuple[float, float, str]:
    """The values of the first and the last colour, and at which end of the scale there are cells beyond it."""
    finite = np.concatenate([panel.values[np.isfinite(panel.values)] for panel in panels])
    if not finite.size:
        return 0.0, 1.0, "neither"
    low, high = float(finite.min()), float(finite.max())
    if high_is_strong:
        low = min(low, 0.0)
        usual = _OUTLIER_FACTOR * float(np.percentile(finite, _USUAL_PERCENTILE))
        return (low, usual, "max") if low < usual < high else (low, max(high, low + _LEAST_SPAN), "neither")
    usual = high - _OUTLIER_FACTOR * (high - float(np.percentile(finite, 100 - _USUAL_PERCENTILE)))
    return (usual, high, "min") if low < usual < high else (min(low, high - _LEAST_SPAN), high, "neither")


def _label(axis: Any, panel: Panel) -> None:
    step = math.ceil(len(panel.rows) / _MAX_LABELLED_ROWS)
    axis.set_xticks(
        range(len(panel.columns)), panel.columns, rotation=35, ha="right", rotation_mode="anchor", fontsize=9
    )
    axis.set_yticks(range(0, len(panel.rows), step), panel.rows[::step], fontsize=9)
    axis.set_ylabel(panel.row_title, fontsize=10)
    axis.tick_params(length=0)
    axis.set_xticks(np.arange(len(panel.columns) + 1) - 0.5, minor=True)
    axis.set_yticks(np.arange(len(panel.rows) + 1) - 0.5, minor=True)
    axis.grid(which="minor", color="white", linewidth=1.2)
    axis.tick_params(which="minor", length=0)
    for side in axis.spines.values():
        side.set_visible(False)


def _write_cells(axis: Any, panel: Panel, image: Any, cell_text: Callable[[float], str]) -> None:
    for row, values in enumerate(panel.values):
        for column, value in enumerate(values):
            if math.isnan(value):
                continue
            red, green, blue, _ = image.cmap(image.norm(value))
            is_dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.55
            text = cell_text(float(value))
            axis.text(
                column, row, text, ha="center", va="center", fontsize=7.5, color="white" if is_dark else "#222222"
            )
