"""The report of a comparison: a page of Markdown with pictures, the numbers as JSON, and a trace of all dispatches."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from lbrx.base.atomic_write import write_atomically
from lbrx.jobs.bench.measure import BenchResult
from lbrx.jobs.bench.report import as_json, as_markdown
from lbrx.plots.heat_map import check_picture, write_figure

_CPU_COLOUR, _METAL_COLOUR, _FAINT = "#b8c4c9", "#1f6f8b", "#555555"
_PICTURES = ("times.png", "throughput.png")


def check_report(directory: Path) -> None:
    """Make the directory; raise now if the report could not be written later."""
    directory.mkdir(parents=True, exist_ok=True)
    check_picture(directory / _PICTURES[0])


def write_report(directory: Path, result: BenchResult) -> Path:
    """Write everything into a directory; the page that shows it."""
    write_figure(directory / _PICTURES[0], _times(result))
    write_figure(directory / _PICTURES[1], _throughput(result))
    write_atomically(directory / "bench.json", as_json(result).encode())
    write_atomically(directory / "trace.json", result.profile.chrome_trace().encode())
    page = directory / "report.md"
    write_atomically(page, as_markdown(result).encode())
    return page


def _new_figure(result: BenchResult, panels: int) -> tuple[Any, Any]:
    new_figure: Any = import_module("matplotlib.figure").Figure
    figure = new_figure(figsize=(3.0 + 4.4 * panels, 0.34 * len(result.rows) + 1.9), layout="constrained")
    return figure, figure.subplots(1, panels, squeeze=False)[0]


def _title(figure: Any, axis: Any, title: str, result: BenchResult) -> None:
    note = " - EMULATED, times mean nothing" if result.emulated else ""
    figure.suptitle(title, fontsize=14, fontweight="bold", x=0.02, ha="left")
    axis.set_title(f"{result.device}{note}", fontsize=10, color=_FAINT, loc="left", pad=10)


def _names(axis: Any, names: list[str]) -> None:
    axis.set_yticks(range(len(names)), names, fontsize=9)
    axis.invert_yaxis()
    axis.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)


def _times(result: BenchResult) -> Any:
    """Two bars for each case, on a scale of powers of ten."""
    figure, (axis,) = _new_figure(result, 1)
    rows = range(len(result.rows))
    devices = (
        ("CPU", _CPU_COLOUR, -0.2, [row.cpu_seconds for row in result.rows]),
        ("Metal", _METAL_COLOUR, 0.2, [row.metal_seconds for row in result.rows]),
    )
    for label, colour, shift, seconds in devices:
        axis.barh([row + shift for row in rows], [1e3 * s for s in seconds], 0.38, color=colour, label=label)
    axis.set_xscale("log")
    axis.set_xlabel("milliseconds (fewer is better)", fontsize=9)
    _names(axis, [row.name for row in result.rows])
    axis.legend(frameon=False, fontsize=9, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2)
    _title(figure, axis, "Time on CPU and Metal", result)
    return figure


def _throughput(result: BenchResult) -> Any:
    figure, axes = _new_figure(result, 2)
    panels = (
        ("bytes moved, GB/s", [row.gigabytes_per_second for row in result.rows]),
        ("arithmetic, GFLOP/s", [row.gigaflops for row in result.rows]),
    )
    for axis, (label, values) in zip(axes, panels, strict=True):
        axis.barh(range(len(values)), values, 0.68, color=_METAL_COLOUR)
        longest = max(values, default=0.0)
        for row, value in enumerate(values):
            axis.text(value + 0.015 * longest, row, f"{value:.3g}", va="center", fontsize=8, color="#222222")
        axis.set_xlim(0, 1.16 * longest if longest > 0 else 1.0)
        axis.set_xlabel(label, fontsize=9)
        _names(axis, [row.name if axis is axes[0] else "" for row in result.rows])
    _title(figure, axes[0], "Throughput on Metal", result)
    return figure
