"""`lbrx diff`: compare two models layer by layer."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any

from lbrx.cli.parameters import Argument, Option
from lbrx.cli.paths import check_model
from lbrx.cli.status import shown_progress
from lbrx.errors import UsageError
from lbrx.jobs.compare.diff import ModelDiff, ShapeMismatch, short_labels
from lbrx.jobs.compare.functions import diff as diff_models
from lbrx.ops.difference import METRICS, Sums

if TYPE_CHECKING:
    from rich.console import Console

    from lbrx.plots.heat_map import HeatMap

MAX_LISTED_NAMES = 20


class Metric(StrEnum):
    """The metric shown in the module table and the plot."""

    relative = "relative"
    cosine = "cosine"
    signs = "signs"
    largest = "largest"
    tasks = "tasks"


_ATTRIBUTES = dict(zip(Metric, METRICS, strict=True))
_TITLES = {
    Metric.relative: "relative change, ||A - B|| / ||A||",
    Metric.cosine: "cosine of A and B",
    Metric.signs: "share of elements with the same sign",
    Metric.largest: "largest difference of an element",
    Metric.tasks: "cosine of A - base and B - base",
}


def diff(
    a: Annotated[Path, Argument("A .safetensors or .gguf file, or a model directory.", "A")],
    b: Annotated[Path, Argument("A model of the same architecture, in any format.", "B")],
    base: Annotated[
        Path | None, Option("--base", help="The base of both models: also compare what each changed in it.")
    ] = None,
    metric: Annotated[Metric, Option("--metric", help="Metric to show for every module.")] = Metric.relative,
    plot: Annotated[Path | None, Option("--plot", help="Write a heat map to this file, such as diff.png.")] = None,
    json_output: Annotated[bool, Option("--json", help="Print the metrics of every tensor as JSON.")] = False,
    pattern: Annotated[
        str | None,
        Option("--filter", metavar="PATTERN", help="Compare only these tensors: '*.q_proj.*', or part of a name."),
    ] = None,
) -> None:
    """Compare two models layer by layer.

    Shows the relative change, cosine, sign agreement and largest difference. Every tensor is read once. To compare two
    versions of one model, such as the original and a quantized file, use 'lbrx compare'.

    Examples:

      lbrx diff base fine-tuned

      lbrx diff model-a model-b --base base --metric tasks

      lbrx diff base fine-tuned --filter mlp --plot diff.png
    """
    if metric is Metric.tasks and base is None:
        raise UsageError("--metric tasks compares the changes to a base model; add --base")
    if plot is not None:
        from lbrx.plots.heat_map import check_picture

        check_picture(plot)
    for path in (a, b, base):
        if path is not None:
            check_model(path, may_be_adapter=True)
    with shown_progress("comparing") as progress:
        difference = diff_models(a, b, base, pattern=pattern, progress=progress)
    if plot is not None:
        from lbrx.plots.heat_map import draw_heat_map

        draw_heat_map(plot, heat_map(difference, metric, _subtitle(a, b, base)))
    if json_output:
        sys.stdout.write(json.dumps(as_json(difference, a, b, base), indent=2) + "\n")
    else:
        _print(difference, metric, _subtitle(a, b, base))


def _subtitle(a: Path, b: Path, base: Path | None) -> str:
    return f"A: {a}   B: {b}" + ("" if base is None else f"   base: {base}")


# -- text -------------------------------------------------------------------------------------------------------------


def metric_text(metric: Metric, value: float) -> str:
    """Format a value of a metric.

    >>> metric_text(Metric.relative, 0.01234), metric_text(Metric.cosine, 0.5), metric_text(Metric.relative, 1e-6)
    ('1.23%', '0.5000', '1.0e-06')
    """
    if math.isnan(value):
        return "-"
    if metric is Metric.largest:
        return f"{value:.3g}"
    if metric in (Metric.cosine, Metric.tasks):
        return f"{value:.4f}"
    return f"{value:.2%}" if value == 0 or value >= 5e-5 else f"{value:.1e}"


def _row(sums: Sums) -> list[str]:
    shown = [metric for metric in Metric if metric is not Metric.tasks or sums.has_tasks]
    return [metric_text(metric, getattr(sums, _ATTRIBUTES[metric])) for metric in shown]


def _print(difference: ModelDiff, metric: Metric, subtitle: str) -> None:
    from lbrx.cli.console import columns, count_text, output_console, plural, printable
    from lbrx.jobs.compare.advice import advice

    console = output_console()
    total = difference.total
    console.print(printable(subtitle), style="bold", soft_wrap=True)
    console.print(f"{plural(len(difference.tensors), 'tensor')} compared, {count_text(total.elements)} elements\n")
    headings = ["relative", "cosine", "same sign", "largest", *(["task cosine"] if total.has_tasks else [])]
    table = columns("layer", *headings, left=("layer",))
    for label, (_, sums) in zip(layer_labels(difference), difference.layers().items(), strict=True):
        table.add_row(label, *_row(sums))
    for tensor in difference.outside_layers():
        table.add_row(printable(tensor.position.module), *_row(tensor.sums))
    table.add_row("all", *_row(total), style="bold")
    console.print(table)
    _print_modules(console, difference, metric)
    print_not_compared(console, difference)
    sentences = advice(difference)
    if sentences:
        console.print("\nwhat this means for a merge", style="bold")
    for sentence in sentences:
        console.print(fill(sentence, console.width, initial_indent="  ", subsequent_indent="  "), soft_wrap=True)


def layer_labels(difference: ModelDiff) -> list[str]:
    """Return the layer numbers, prefixed with the stack name if there are several stacks."""
    keys = list(difference.layers())
    has_several = len({stack for stack, _ in keys}) > 1
    return [f"{stack}.{layer}" if has_several else str(layer) for stack, layer in keys]


def _grid(difference: ModelDiff, metric: Metric) -> tuple[list[str], list[list[float]]]:
    """Return the module names and one row of values per layer. A missing module is NaN."""
    rows = difference.modules()
    modules = difference.module_names()
    name = _ATTRIBUTES[metric]
    values = [[float(getattr(row.get(module), name, math.nan)) for module in modules] for row in rows.values()]
    return modules, values


def _print_modules(console: Console, difference: ModelDiff, metric: Metric) -> None:
    from lbrx.cli.console import columns, printable

    modules, values = _grid(difference, metric)
    if not modules:
        return
    labels = [printable(label) for label in short_labels(modules)]
    rows = layer_labels(difference)
    console.print(f"\n{_TITLES[metric]}, by layer and module", style="dim")
    width_left = console.width - max(len("layer"), *map(len, rows)) - 2
    for first, stop in _fitting([max(len(label), 8) + 2 for label in labels], width_left):
        table = columns("layer", *labels[first:stop], left=("layer",))
        for label, row in zip(rows, values, strict=True):
            table.add_row(label, *(metric_text(metric, value) for value in row[first:stop]))
        console.print(table)


def _fitting(widths: Sequence[int], width_left: int) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) ranges of columns that fit side by side, with at least one column each."""
    first = used = 0
    for index, width in enumerate(widths):
        if used + width > width_left and index > first:
            yield first, index
            first, used = index, 0
        used += width
    yield first, len(widths)


def print_not_compared(console: Console, difference: ModelDiff) -> None:
    """List tensors that only one model has, and tensors whose shapes differ."""
    from lbrx.cli.console import printable

    groups = (
        ("only in A", difference.only_in_a),
        ("only in B", difference.only_in_b),
        ("not compared, because their shapes differ", [_mismatch_text(odd) for odd in difference.shape_mismatches]),
        ("compared without the base, because it lacks them", difference.without_base),
    )
    for title, names in groups:
        if not names:
            continue
        console.print(f"\n{title}: {len(names):,}", style="bold")
        for name in names[:MAX_LISTED_NAMES]:
            console.print(f"  {printable(name)}", soft_wrap=True)
        if len(names) > MAX_LISTED_NAMES:
            console.print(f"  ... {len(names) - MAX_LISTED_NAMES:,} more (use --json)")


def _mismatch_text(mismatch: ShapeMismatch) -> str:
    from lbrx.cli.console import shape_text

    return f"{mismatch.name}: {shape_text(mismatch.shape_a)} in A, {shape_text(mismatch.shape_b)} in B"


# -- JSON and plot ----------------------------------------------------------------------------------------------------


def as_json(difference: ModelDiff, a: Path, b: Path, base: Path | None) -> dict[str, Any]:
    """Return the comparison as JSON-compatible values. NaN and infinities become null."""
    from lbrx.jobs.compare.advice import advice

    return {
        "a": str(a),
        "b": str(b),
        "base": None if base is None else str(base),
        "total": _metrics(difference.total),
        "layers": [
            {"stack": stack, "layer": layer} | _metrics(sums) for (stack, layer), sums in difference.layers().items()
        ],
        "tensors": [
            {"name": tensor.name, "shape": list(tensor.shape), "layer": tensor.position.layer} | _metrics(tensor.sums)
            for tensor in difference.tensors
        ],
        "only_in_a": list(difference.only_in_a),
        "only_in_b": list(difference.only_in_b),
        "shape_mismatches": [
            {"name": odd.name, "a": list(odd.shape_a), "b": list(odd.shape_b)} for odd in difference.shape_mismatches
        ],
        "without_base": list(difference.without_base),
        "advice": advice(difference),
    }


def _metrics(sums: Sums) -> dict[str, float | None]:
    named = sums.metrics()
    return {name: value if math.isfinite(value) else None for name, value in named.items()}


def heat_map(difference: ModelDiff, metric: Metric, subtitle: str) -> HeatMap:
    """Return a heat map of layers by modules, with a second panel for tensors outside the layers."""
    import numpy as np

    from lbrx.plots.heat_map import HeatMap, Panel

    modules, values = _grid(difference, metric)
    panels = []
    if modules:
        panels.append(Panel(layer_labels(difference), short_labels(modules), np.array(values, np.float64), "layer"))
    outside = difference.outside_layers()
    if outside:
        labels = short_labels([tensor.position.module for tensor in outside])
        numbers = [[float(getattr(tensor.sums, _ATTRIBUTES[metric])) for tensor in outside]]
        panels.append(Panel(["other"], labels, np.array(numbers, np.float64)))
    is_distance = metric in (Metric.relative, Metric.largest)
    return HeatMap(
        panels,
        _finding(difference, metric, modules, values),
        subtitle,
        _TITLES[metric],
        lambda value: _short_text(metric, value),
        high_is_strong=is_distance,
        is_signed=metric in (Metric.cosine, Metric.tasks),
    )


def _finding(difference: ModelDiff, metric: Metric, modules: list[str], values: list[list[float]]) -> str:
    """Return the plot title: the value for the whole model, and the module that differs most."""
    total = metric_text(metric, getattr(difference.total, _ATTRIBUTES[metric]))
    names = {
        Metric.relative: f"A and B differ by {total}",
        Metric.cosine: f"The cosine of A and B is {total}",
        Metric.signs: f"{total} of elements have the same sign",
        Metric.largest: f"Elements differ by at most {total}",
        Metric.tasks: f"The changes of A and B have a cosine of {total}",
    }
    is_distance = metric in (Metric.relative, Metric.largest)
    cells = [
        (value if is_distance else -value, row, column)
        for row, line in enumerate(values)
        for column, value in enumerate(line)
        if math.isfinite(value)
    ]
    if not cells:
        return names[metric]
    _, row, column = max(cells)
    where = f"{short_labels(modules)[column]} of layer {layer_labels(difference)[row]}"
    return f"{names[metric]}, most different in {where}"


def _short_text(metric: Metric, value: float) -> str:
    """Format a value for a heat map cell or a color bar tick.

    >>> _short_text(Metric.relative, 0.4), _short_text(Metric.cosine, 0.8), _short_text(Metric.relative, 0.0123)
    ('40%', '0.80', '1.2%')
    """
    if metric in (Metric.cosine, Metric.tasks) and not math.isnan(value):
        return f"{round(value, 2) + 0.0:.2f}"  # avoids -0.00
    if metric in (Metric.relative, Metric.signs) and (value == 0 or value >= 5e-4):
        return f"{value:.0%}" if value == 0 or value >= 0.1 else f"{value:.1%}"
    return metric_text(metric, value)
