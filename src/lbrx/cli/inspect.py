"""`lbrx inspect`: show what a model file or directory contains, from its headers."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from rich.text import Text

from lbrx.base.system import format_bytes
from lbrx.cli.console import columns, count_text, facts, output_console, plural, printable, shape_text, shortened
from lbrx.cli.parameters import Argument, Option
from lbrx.cli.paths import check_model
from lbrx.files.checkpoint.summary import Summary, as_json
from lbrx.files.checkpoint.summary import inspect as inspect_model

MAX_METADATA_ROWS = 100
MAX_PIPED_VALUE_WIDTH = 100
MAX_LISTED_VALUES = 8
_FORMAT_NAMES = {
    "safetensors": "SafeTensors file",
    "gguf": "GGUF file",
    "gguf-split": "GGUF model in shards",
    "huggingface": "Hugging Face directory (SafeTensors)",
    "pytorch": "PyTorch file",
    "pytorch-directory": "Hugging Face directory (PyTorch)",
}


def inspect(
    path: Annotated[Path, Argument("A .safetensors or .gguf file, or a model directory.")],
    tensors: Annotated[bool, Option("--tensors", help="List every tensor.")] = False,
    json_output: Annotated[bool, Option("--json", help="Print the full result as JSON.")] = False,
    pattern: Annotated[
        str | None,
        Option(
            "--filter",
            metavar="PATTERN",
            help="List and count only these tensors: '*.q_proj.*', or part of a name.",
        ),
    ] = None,
) -> None:
    """Show what a model file or directory contains.

    Reads only the headers, so it is fast for models of any size.

    Examples:

      lbrx inspect model.gguf

      lbrx inspect Llama-3.2-1B --filter '*.q_proj.*'

      lbrx inspect merged --json > merged.json
    """
    check_model(path, may_be_adapter=True)
    summary = inspect_model(path, pattern=pattern)
    if json_output:
        sys.stdout.write(json.dumps(as_json(summary), indent=2) + "\n")
        return
    _print_summary(summary, is_part=pattern is not None)
    if summary.metadata.get("general.type") == "imatrix" and pattern is None:
        _print_importances(path)
    if tensors or pattern is not None:
        _print_tensors(summary)


def _print_summary(summary: Summary, is_part: bool) -> None:
    console = output_console()
    console.print(Text(printable(summary.path), style="bold"), soft_wrap=True)
    console.print(facts(_facts(summary, is_part)))
    totals = summary.type_totals()
    if totals:
        table = columns("type", "tensors", "elements", "bytes", left=("type",))
        for row in totals:
            table.add_row(row.type_name, f"{row.tensors:,}", count_text(row.elements), format_bytes(row.nbytes))
        console.print()
        console.print(table)
    if summary.metadata:
        longest_key = max(len(printable(key)) for key in summary.metadata)
        value_width = max(console.width - longest_key - 2, 20) if console.is_terminal else MAX_PIPED_VALUE_WIDTH
        console.print()
        console.print(Text(f"metadata, {plural(len(summary.metadata), 'entry', 'entries')}", style="dim"))
        console.print(facts(_metadata_rows(summary.metadata, min(value_width, MAX_PIPED_VALUE_WIDTH))))


def _print_importances(path: Path) -> None:
    """Print statistics of an importance matrix, one line per tensor, those with the largest sums first."""
    from lbrx.jobs.imatrix.files import read_sums
    from lbrx.jobs.imatrix.statistics import statistics

    headings = ("sum", "min", "max", "mean", "deviation", "active", "columns", "entropy", "even", "above", "similar")
    table = columns("tensor", *headings, left=("tensor",), dropped_first=("above", "deviation", "min", "columns"))
    for row in statistics(read_sums(path).entries):
        similar = "" if row.similarity is None else f"{row.similarity:.4f}"
        table.add_row(
            printable(row.name),
            *(f"{value:.4g}" for value in (row.total, row.least, row.most, row.mean, row.deviation)),
            f"{row.active:.1%}",
            f"{row.columns:,}",
            f"{row.entropy:.2f}",
            f"{row.evenness:.1%}",
            f"{row.above:.1%}",
            similar,
        )
    output_console().print()
    output_console().print("importance matrix: mean squares of the inputs of each tensor")
    output_console().print(table)


def _facts(summary: Summary, is_part: bool) -> Iterator[tuple[str, str]]:
    is_mlx = summary.quantization is not None and "quantization" in (summary.config or {})
    yield "format", f"MLX directory, {summary.quantization}" if is_mlx else _FORMAT_NAMES[summary.format]
    yield "files", f"{plural(len(summary.files), 'file')}, {format_bytes(summary.file_bytes)}"
    if summary.quantization is not None and not is_mlx:
        yield "quantized", printable(summary.quantization)
    if summary.architecture is not None:
        layers = f", {plural(summary.layer_count, 'layer')}" if summary.layer_count is not None else ""
        yield "architecture", printable(summary.architecture) + layers
    tensors = plural(len(summary.chosen), "tensor")
    if is_part:
        tensors = f"{len(summary.chosen):,} of {plural(summary.tensor_count, 'tensor')}"
    yield "parameters", f"{count_text(summary.parameters)} in {tensors}, {format_bytes(summary.nbytes)}"


def _metadata_rows(metadata: Mapping[str, Any], width: int) -> Iterator[tuple[str, str]]:
    for number, (key, value) in enumerate(metadata.items()):
        if number == MAX_METADATA_ROWS:
            yield "...", f"{len(metadata) - number:,} more (use --json)"
            return
        yield printable(key), _value_text(value, width)


def _value_text(value: Any, width: int) -> str:
    if isinstance(value, str):
        return shortened(value, width)
    if isinstance(value, np.ndarray | Sequence):
        return _array_text(value, width)
    return str(value)


def _array_text(values: np.ndarray[Any, Any] | Sequence[Any], width: int) -> str:
    """Return the elements of a short array, or the length of a long one, such as `250,000 strings`."""
    if len(values) <= MAX_LISTED_VALUES:
        listed = printable("[" + ", ".join(map(str, values)) + "]")
        if len(listed) <= width:
            return listed
    return plural(len(values), "string" if isinstance(values[0], str) else "number")


def _print_tensors(summary: Summary) -> None:
    """Print one line per tensor, name last so that only names wrap on a narrow terminal.

    Does not use a rich table, whose layout takes a second for ten thousand rows.
    """
    rows = [("type", "shape", "bytes", "name")]
    for _, entry in summary.chosen:
        rows.append((entry.type_name, shape_text(entry.shape), format_bytes(entry.nbytes), printable(entry.name)))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = (
        f"{type_name:<{widths[0]}}  {shape:>{widths[1]}}  {nbytes:>{widths[2]}}  {name}"
        for type_name, shape, nbytes, name in rows
    )
    sys.stdout.write("\n" + "\n".join(lines) + "\n")
