"""`lbrx lora extract`: the difference of two models as a LoRA adapter."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from lbrx.cli.options import Memory, Threads
from lbrx.cli.parameters import Argument, Option
from lbrx.cli.paths import check_model
from lbrx.cli.status import shown_progress
from lbrx.files.checkpoint.opening import open_checkpoint
from lbrx.jobs.lora.extract import Extraction, ExtractOptions, extract_adapter
from lbrx.memory.limits import limited

MAX_LISTED_TENSORS = 20


class Action(StrEnum):
    """What is done with adapters."""

    extract = "extract"


class AdapterType(StrEnum):
    """How the factors are stored."""

    f32 = "f32"
    bf16 = "bf16"
    f16 = "f16"


def lora(
    action: Annotated[Action, Argument("What to do; 'extract' is all there is.")],
    tuned: Annotated[Path, Argument("A fine-tuned model: a file or a directory.", "FINETUNED")],
    base: Annotated[Path, Argument("The model that it was tuned from.", "BASE")],
    out: Annotated[Path, Argument("A new directory for the adapter, in PEFT's format.", "OUT")],
    rank: Annotated[
        int | None,
        Option(
            "--rank",
            min=1,
            help="Rank of each matrix, 32 by default; with --max-error the largest, no limit by default.",
        ),
    ] = None,
    max_error: Annotated[
        float | None,
        Option("--max-error", help="Give each matrix the smallest rank within a relative error, such as 0.05."),
    ] = None,
    modules: Annotated[
        str | None, Option("--modules", metavar="REGEX", help="Only modules whose names match: 'self_attn|mlp'.")
    ] = None,
    save_modules: Annotated[
        bool, Option("--save-modules", help="Store changed embeddings, norms and biases whole.")
    ] = False,
    dtype: Annotated[AdapterType, Option("--dtype", help="Type of the adapter's tensors.")] = AdapterType.f32,
    threads: Threads = None,
    memory: Memory = None,
) -> None:
    """Extract a LoRA adapter from the difference of two models.

    Each changed matrix becomes a product of two thin ones, the best that there is of its rank, and the share of the
    change that it captures is measured. What is no matrix of a linear layer is listed, or stored whole.

    Examples:

      lbrx lora extract fine-tuned base adapter --rank 16

      lbrx lora extract fine-tuned base adapter --max-error 0.05 --save-modules

      lbrx lora extract fine-tuned base adapter --modules self_attn --dtype bf16
    """
    assert action is Action.extract
    options = ExtractOptions(rank, max_error, modules, save_modules, dtype.value)
    for path in (tuned, base):
        check_model(path)
    tuned_model, base_model = open_checkpoint(tuned), open_checkpoint(base)
    model_type = (base_model.config or {}).get("model_type")
    with limited(threads, memory), shown_progress("extracting") as progress:
        extraction = extract_adapter(
            tuned_model, base_model, out, options, base_name=str(base), model_type=model_type, progress=progress
        )
    _print(extraction, out, options)


def _print(extraction: Extraction, out: Path, options: ExtractOptions) -> None:
    from lbrx.cli.console import columns, output_console, plural, printable, shape_text

    console = output_console()
    table = columns("rank", "shape", "change", "captured", "error", "tensor", left=("tensor",))
    for tensor in extraction.captured:
        numbers = (f"{tensor.relative_change:.3%}", f"{tensor.captured_energy:.2%}", f"{tensor.relative_error:.2%}")
        table.add_row(str(tensor.rank), shape_text(tensor.shape), *numbers, printable(tensor.name))
    console.print(table)
    if extraction.saved:
        console.print(f"\nstored whole: {plural(len(extraction.saved), 'tensor')}", style="bold")
        _print_some(extraction.saved)
    if extraction.left_out:
        console.print(f"\nchanged, but not captured: {plural(len(extraction.left_out), 'tensor')}", style="bold")
        _print_some([f"{tensor.name}: {tensor.reason}" for tensor in extraction.left_out])
    beyond = [tensor for tensor in extraction.captured if tensor.relative_error > (options.max_error or 1)]
    if beyond:
        needed = "factors in f32" if options.rank is None else f"more than rank {options.rank}"
        matrices = plural(len(beyond), "matrix", "matrices")
        console.print(f"\n{matrices} would need {needed} for an error of {options.max_error}")
    summary = f"{plural(len(extraction.captured), 'matrix', 'matrices')}, {extraction.unchanged:,} tensors unchanged"
    console.print(f"\n{out}: {summary}", soft_wrap=True)


def _print_some(lines: list[str]) -> None:
    from lbrx.cli.console import output_console, printable

    console = output_console()
    for line in lines[:MAX_LISTED_TENSORS]:
        console.print(f"  {printable(line)}", soft_wrap=True)
    if len(lines) > MAX_LISTED_TENSORS:
        console.print(f"  ... {len(lines) - MAX_LISTED_TENSORS:,} more")
