"""``python -m benchmarks [SUITE ...]``: run the suites, show the figures, store them and write docs/figures.md."""

from __future__ import annotations

import importlib
import sys

from rich.console import Console
from rich.table import Table

from benchmarks.figures import load, result_of, save, updated, write_page
from benchmarks.harness import Figure

SUITES = {
    "streaming": "benchmarks.streaming",
    "numpy": "benchmarks.against_numpy",
    "opening": "benchmarks.opening",
    "merge": "benchmarks.merging",
    "quantize": "benchmarks.quantizing",
    "compute": "benchmarks.compute",
    "decode": "benchmarks.decoding",
    "quality": "benchmarks.quality",
    "search": "benchmarks.searching",
    "cluster": "benchmarks.cluster",
}


def main(names: list[str]) -> int:
    console = Console()
    unknown = [name for name in names if name not in SUITES]
    if unknown:
        console.print(f"unknown suite {unknown[0]}; expected some of {', '.join(SUITES)}")
        return 2
    figures: list[Figure] = []
    for name in names or list(SUITES):
        for figure in importlib.import_module(SUITES[name]).run():
            figures.append(figure)
            console.print(line(figure), soft_wrap=True)
            save(updated(load(), [result_of(figure)]))  # a run that is stopped keeps what it measured
            write_page()
    show(console, figures)
    return 0


def line(figure: Figure) -> str:
    mark = "ok   " if figure.reached else "short"
    return f"{mark} {figure.name:<44} {figure.ratio:8.2f}  (target {figure.target:g})  {figure.detail}"


def show(console: Console, figures: list[Figure]) -> None:
    short = [figure for figure in figures if not figure.reached]
    table = Table(title=f"{len(figures) - len(short)} of {len(figures)} figures reached")
    for column in ("suite", "what", "ratio", "target", "measured"):
        table.add_column(column, justify="right" if column in ("ratio", "target") else "left")
    for figure in figures:
        style = "" if figure.reached else "red"
        table.add_row(
            figure.suite, figure.name, f"{figure.ratio:.2f}", f"{figure.target:g}", figure.detail, style=style
        )
    console.print(table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
