"""The report of `lbrx lora extract`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lbrx.base.system import format_bytes
from lbrx.files.checkpoint.opening import open_checkpoint
from lbrx.jobs.lora.extract import CapturedTensor, Extraction, ExtractOptions, LeftOutTensor

MAX_LISTED_TENSORS = 20
MAX_NAMES = 3  # of left-out tensors, per reason
LEAST_USEFUL_SHARE = 0.25  # share of the change that the adapter captures


def extraction_json(extraction: Extraction, out: Path) -> dict[str, Any]:
    return {
        "out": str(out),
        "captured_energy": extraction.captured_energy,
        "captured": [
            {
                "name": each.name,
                "shape": list(each.shape),
                "rank": each.rank,
                "relative_change": each.relative_change,
                "relative_error": each.relative_error,
            }
            for each in extraction.captured
        ],
        "saved": extraction.saved,
        "left_out": [{"name": each.name, "reason": each.reason} for each in extraction.left_out],
        "unchanged": extraction.unchanged,
    }


def print_total(extraction: Extraction, base: Path, out: Path) -> None:
    """Print how much of the change the adapter captures, a warning if it is very little, and the next command."""
    if extraction.captured:
        share = extraction.captured_energy
        print(f"captured {share:.1%} of the change in these matrices, {format_bytes(open_checkpoint(out).nbytes)}")
        if share < LEAST_USEFUL_SHARE:
            sys.stderr.write(
                "warning: the adapter captures little of the fine-tune, because its changes are not low-rank; "
                "a higher --rank captures more\n"
            )
    if sys.stdout.isatty():
        print("next: " + shlex.join(["lbrx", "lora", "merge", str(base), str(out), "MERGED"]))


def print_extraction(extraction: Extraction, out: Path, options: ExtractOptions, *, with_tensors: bool) -> None:
    from lbrx.cli.console import columns, output_console, plural, printable, shape_text

    console = output_console()
    table = columns("rank", "shape", "change", "captured", "error", "tensor", left=("tensor",))
    for tensor in extraction.captured if with_tensors else _least_captured(extraction):
        numbers = (f"{tensor.relative_change:.3%}", f"{tensor.captured_energy:.2%}", f"{tensor.relative_error:.2%}")
        table.add_row(str(tensor.rank), shape_text(tensor.shape), *numbers, printable(tensor.name))
    console.print(table)
    if not with_tensors and len(extraction.captured) > MAX_LISTED_TENSORS:
        console.print(f"... {len(extraction.captured) - MAX_LISTED_TENSORS:,} more (use --tensors)", style="dim")
    if extraction.saved:
        console.print(f"\nstored in full: {plural(len(extraction.saved), 'tensor')}", style="bold")
        _print_some(extraction.saved)
    if extraction.left_out:
        console.print(f"\nchanged, but not captured: {plural(len(extraction.left_out), 'tensor')}", style="bold")
        _print_left_out(extraction.left_out, with_tensors=with_tensors)
    beyond = [tensor for tensor in extraction.captured if tensor.relative_error > (options.max_error or 1)]
    if beyond:
        needed = "factors in f32" if options.rank is None else f"more than rank {options.rank}"
        matrices = plural(len(beyond), "matrix", "matrices")
        console.print(f"\n{matrices} would need {needed} for an error of {options.max_error}")
    summary = f"{plural(len(extraction.captured), 'matrix', 'matrices')}, {extraction.unchanged:,} tensors unchanged"
    console.print(f"\n{out}: {summary}", soft_wrap=True)


def _least_captured(extraction: Extraction) -> list[CapturedTensor]:
    """Return the tensors that the adapter captures worst if there are many, in file order."""
    worst = sorted(extraction.captured, key=lambda tensor: -tensor.relative_error)[:MAX_LISTED_TENSORS]
    return [tensor for tensor in extraction.captured if tensor in worst]


def _print_left_out(tensors: Sequence[LeftOutTensor], *, with_tensors: bool) -> None:
    """Print each tensor, or the first names of each reason."""
    if with_tensors:
        _print_some([f"{tensor.name}: {tensor.reason}" for tensor in tensors])
        return
    by_reason: dict[str, list[str]] = {}
    for tensor in tensors:
        by_reason.setdefault(tensor.reason, []).append(tensor.name)
    for reason, names in by_reason.items():
        more = f" and {len(names) - MAX_NAMES:,} more" if len(names) > MAX_NAMES else ""
        _print_some([f"{reason}: {', '.join(names[:MAX_NAMES])}{more}"])


def _print_some(lines: list[str]) -> None:
    from lbrx.cli.console import output_console, printable

    console = output_console()
    for line in lines[:MAX_LISTED_TENSORS]:
        console.print(f"  {printable(line)}", soft_wrap=True)
    if len(lines) > MAX_LISTED_TENSORS:
        console.print(f"  ... {len(lines) - MAX_LISTED_TENSORS:,} more")
