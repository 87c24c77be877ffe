"""`lbrx lora`: extract a LoRA adapter from two models, or merge an adapter into its base."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from lbrx.base.system import format_bytes
from lbrx.cli.options import LimitOptions, Memory, RunOptions, Threads
from lbrx.cli.parameters import Argument, Option
from lbrx.cli.paths import check_model
from lbrx.cli.running import reporting, write_output
from lbrx.cli.status import shown_progress
from lbrx.files.checkpoint.opening import open_checkpoint
from lbrx.jobs.lora.extract import CapturedTensor, Extraction, ExtractOptions, LeftOutTensor, extract_lora
from lbrx.memory.limits import limited

MAX_LISTED_TENSORS = 20
MAX_NAMES = 3  # of left-out tensors, per reason
LEAST_USEFUL_SHARE = 0.25  # share of the change that the adapter captures


class Action(StrEnum):
    """What to do."""

    extract = "extract"
    merge = "merge"


class AdapterType(StrEnum):
    """The dtype of the factors."""

    f32 = "f32"
    bf16 = "bf16"
    f16 = "f16"


def lora(
    action: Annotated[Action, Argument("extract: FINETUNED BASE OUT; merge: BASE ADAPTER OUT.", "ACTION")],
    tuned: Annotated[Path, Argument("The fine-tuned model; for merge, the base model.", "FINETUNED")],
    base: Annotated[Path, Argument("Its base model; for merge, the adapter.", "BASE")],
    out: Annotated[Path, Argument("A new directory for the PEFT adapter or the merged model.", "OUT")],
    rank: Annotated[
        int | None,
        Option(
            "--rank",
            min=1,
            help="Rank of each matrix (default: 32). With --max-error, the largest rank (default: no limit).",
        ),
    ] = None,
    max_error: Annotated[
        float | None,
        Option("--max-error", help="Use the smallest rank per matrix with at most this relative error, such as 0.05."),
    ] = None,
    modules: Annotated[
        str | None, Option("--modules", metavar="REGEX", help="Only modules whose name matches: 'self_attn|mlp'.")
    ] = None,
    save_modules: Annotated[
        bool, Option("--save-modules", help="Store changed embeddings, norms and biases in full.")
    ] = False,
    dtype: Annotated[AdapterType, Option("--dtype", help="Dtype of the adapter's tensors.")] = AdapterType.f32,
    threads: Threads = None,
    memory: Memory = None,
    tensors: Annotated[bool, Option("--tensors", help="List every tensor.")] = False,
    json_output: Annotated[bool, Option("--json", help="Print the full result as JSON.")] = False,
) -> None:
    """Extract a LoRA adapter from two models, or merge one.

    'extract' replaces the change of each weight matrix with its best low-rank approximation and measures how much of
    the change it captures. Other changed tensors are listed, or stored in full with --save-modules. 'merge' adds an
    adapter to its base.

    Examples:

      lbrx lora extract fine-tuned base adapter --rank 16

      lbrx lora extract fine-tuned base adapter --max-error 0.05 --save-modules

      lbrx lora extract fine-tuned base adapter --modules self_attn --dtype bf16

      lbrx lora merge base adapter merged
    """
    if action is Action.merge:
        _merge(tuned, base, out, LimitOptions(threads, memory), RunOptions(json_output=json_output))
        return
    options = ExtractOptions(rank, max_error, modules, save_modules, dtype.value)
    for path in (tuned, base):
        check_model(path)
    with limited(threads, memory), shown_progress("extracting") as progress:
        extraction = extract_lora(
            tuned,
            base,
            out,
            rank=rank,
            max_error=max_error,
            modules=modules,
            save_modules=save_modules,
            dtype=dtype.value,
            progress=progress,
        )
    if json_output:
        sys.stdout.write(json.dumps(_as_json(extraction, out), indent=2) + "\n")
        return
    _print(extraction, out, options, with_tensors=tensors)
    _print_total(extraction, base, out)


def _merge(base: Path, adapter: Path, out: Path, limits: LimitOptions, options: RunOptions) -> None:
    """Merge an adapter into its base."""
    from lbrx.jobs.merge.lora import merge_lora

    check_model(base)
    check_model(adapter, may_be_adapter=True)
    with reporting("merging", options) as report:
        write_output(partial(merge_lora, base, adapter, out), report, limits, options)


def _as_json(extraction: Extraction, out: Path) -> dict[str, Any]:
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


def _print_total(extraction: Extraction, base: Path, out: Path) -> None:
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


def _print(extraction: Extraction, out: Path, options: ExtractOptions, *, with_tensors: bool) -> None:
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
