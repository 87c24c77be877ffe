"""`lbrx compare`: measure the error of a conversion or quantization, tensor by tensor."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from lbrx.cli.parameters import Argument, Option
from lbrx.cli.paths import check_model
from lbrx.cli.status import shown_progress
from lbrx.jobs.compare import Comparison, TensorError
from lbrx.jobs.compare.diff import short_labels
from lbrx.jobs.compare.functions import compare as compare_models
from lbrx.jobs.compare.records import signal_to_noise
from lbrx.ops.difference import Sums

if TYPE_CHECKING:
    from rich.console import Console

    from lbrx.plots.heat_map import HeatMap

DEFAULT_ROWS = 20
_HEADINGS = ("relative", "SNR", "cosine", "largest")


def compare(
    a: Annotated[Path, Argument("The original: a weights file or a model directory.", "A")],
    b: Annotated[Path, Argument("The converted or quantized model, in any format.", "B")],
    top: Annotated[int, Option("--top", min=0, help="Number of tensors to list, worst first.")] = DEFAULT_ROWS,
    plot: Annotated[
        Path | None, Option("--plot", help="Write a heat map of the errors to this file, such as errors.png.")
    ] = None,
    json_output: Annotated[bool, Option("--json", help="Print the full result as JSON.")] = False,
    pattern: Annotated[
        str | None,
        Option("--filter", metavar="PATTERN", help="Compare only these tensors: '*.q_proj.*', or part of a name."),
    ] = None,
) -> None:
    """Measure what a conversion or quantization changed.

    Shows the relative error, signal-to-noise ratio, largest error, cosine and worst block of every tensor. Tensor names
    of GGUF, MLX, PyTorch and Hugging Face models are mapped to each other. To compare two different models, such as
    fine-tunes, use 'lbrx diff'.

    Examples:

      lbrx compare Llama-3.2-1B llama-q4_k_m.gguf

      lbrx compare model model-mlx --filter ffn --top 5

      lbrx compare model model-q4_0.gguf --plot errors.png
    """
    if plot is not None:
        from lbrx.plots.heat_map import check_picture

        check_picture(plot)
    for path in (a, b):
        check_model(path)
    with shown_progress("comparing") as progress:
        comparison = compare_models(a, b, pattern=pattern, progress=progress)
    if plot is not None:
        from lbrx.plots.heat_map import draw_heat_map

        draw_heat_map(plot, heat_map(comparison, f"A: {a}   B: {b}   (empty: identical, or not a number)"))
    if json_output:
        sys.stdout.write(json.dumps(as_json(comparison, a, b), indent=2) + "\n")
    else:
        _print(comparison, f"A: {a}   B: {b}", top)


# -- text -------------------------------------------------------------------------------------------------------------


def error_text(value: float) -> str:
    """Format a relative error.

    >>> error_text(0.0123), error_text(2e-7), error_text(0.0), error_text(math.nan)
    ('1.23%', '2.0e-07', '0', 'NaN')
    """
    if math.isnan(value):
        return "NaN"
    if value == 0:
        return "0"
    return f"{value:.2%}" if 5e-5 <= value < 100 else f"{value:.1e}"


def decibel_text(value: float) -> str:
    """Format a signal-to-noise ratio.

    >>> decibel_text(20.04), decibel_text(math.inf), decibel_text(math.nan)
    ('20.0 dB', 'exact', 'NaN')
    """
    if math.isnan(value):
        return "NaN"
    return "exact" if value == math.inf else f"{value:.1f} dB"


def _numbers(sums: Sums) -> list[str]:
    cosine = "-" if math.isnan(sums.cosine) else f"{sums.cosine:.6f}"
    return [
        error_text(sums.relative_change),
        decibel_text(signal_to_noise(sums)),
        cosine,
        "NaN" if math.isnan(sums.max_difference) else f"{sums.max_difference:.3g}",
    ]


def _types_text(type_a: str, type_b: str) -> str:
    return type_a if type_a == type_b else f"{type_a} -> {type_b}"


def _print(comparison: Comparison, subtitle: str, top: int) -> None:
    from lbrx.cli.console import columns, count_text, output_console, plural, printable
    from lbrx.cli.diff import print_not_compared

    console = output_console()
    console.print(printable(subtitle), style="bold", soft_wrap=True)
    console.print(
        f"{plural(len(comparison.tensors), 'tensor')} compared, {count_text(comparison.total.elements)} elements\n"
    )
    table = columns("types", "tensors", *_HEADINGS, left=("types",))
    for (type_a, type_b), (count, sums) in comparison.by_types().items():
        table.add_row(_types_text(type_a, type_b), f"{count:,}", *_numbers(sums))
    table.add_row("all", f"{len(comparison.tensors):,}", *_numbers(comparison.total), style="bold")
    console.print(table)
    _print_tensors(console, comparison, top)
    print_not_compared(console, comparison.models)


def _print_tensors(console: Console, comparison: Comparison, top: int) -> None:
    from lbrx.cli.console import columns, printable

    shown = comparison.tensors[:top]
    if not shown:
        return
    console.print("\nworst tensors and their worst blocks", style="dim")
    table = columns(
        "tensor", "types", *_HEADINGS, "worst block", left=("tensor",), dropped_first=("cosine", "worst block")
    )
    table.columns[1].justify = "left"
    for tensor in shown:
        block = str(tensor.worst_blocks[0]) if tensor.worst_blocks else ""
        types = _types_text(tensor.type_a, tensor.type_b)
        table.add_row(printable(tensor.name), types, *_numbers(tensor.diff.sums), block)
    console.print(table)
    if len(comparison.tensors) > top:
        console.print(f"... {len(comparison.tensors) - top:,} more (use --top or --json)", style="dim")


# -- JSON and plot ----------------------------------------------------------------------------------------------------


def as_json(comparison: Comparison, a: Path, b: Path) -> dict[str, Any]:
    """Return the comparison as JSON-compatible values. NaN and infinities become null."""
    models = comparison.models
    return {
        "a": str(a),
        "b": str(b),
        "total": _described(comparison.total),
        "types": [
            {"a": type_a, "b": type_b, "tensors": count} | _described(sums)
            for (type_a, type_b), (count, sums) in comparison.by_types().items()
        ],
        "tensors": [_described_tensor(tensor) for tensor in comparison.tensors],
        "only_in_a": list(models.only_in_a),
        "only_in_b": list(models.only_in_b),
        "shape_mismatches": [
            {"name": odd.name, "a": list(odd.shape_a), "b": list(odd.shape_b)} for odd in models.shape_mismatches
        ],
    }


def _described_tensor(tensor: TensorError) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "shape": list(tensor.diff.shape),
        "type_a": tensor.type_a,
        "type_b": tensor.type_b,
        **_described(tensor.diff.sums),
        "worst_blocks": [block._asdict() | {"relative": _finite(block.relative)} for block in tensor.worst_blocks],
    }


def _described(sums: Sums) -> dict[str, float | None]:
    named = {
        "relative_error": sums.relative_change,
        "signal_to_noise_db": signal_to_noise(sums),
        "max_error": sums.max_difference,
        "cosine": sums.cosine,
    }
    return {name: _finite(value) for name, value in named.items()}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def heat_map(comparison: Comparison, subtitle: str) -> HeatMap:
    """Return a heat map of the signal-to-noise ratio by layer and module. Exact tensors stay empty."""
    import numpy as np

    from lbrx.cli.diff import layer_labels
    from lbrx.plots.heat_map import HeatMap, Panel

    rows = comparison.models.modules()
    modules = comparison.models.module_names()
    panels = []
    if modules:
        values = [[_cell(row.get(module)) for module in modules] for row in rows.values()]
        panels.append(
            Panel(layer_labels(comparison.models), short_labels(modules), np.array(values, np.float64), "layer")
        )
    outside = comparison.models.outside_layers()
    if outside:
        labels = short_labels([tensor.position.module for tensor in outside])
        panels.append(Panel(["other"], labels, np.array([[_cell(tensor.sums) for tensor in outside]], np.float64)))
    label = "signal-to-noise ratio in dB"
    title = f"B differs from A by {error_text(comparison.total.relative_change)}"
    if comparison.tensors:
        worst = comparison.tensors[0]
        title += f", most in {worst.name} ({error_text(worst.diff.sums.relative_change)})"
    return HeatMap(panels, title, subtitle, label, lambda value: f"{value:.1f}", high_is_strong=False)


def _cell(sums: Sums | None) -> float:
    value = math.nan if sums is None else signal_to_noise(sums)
    return value if math.isfinite(value) else math.nan
