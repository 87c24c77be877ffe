"""`lbrx imatrix`: measure the importance of columns of weights."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from lbrx.cli.options import Cluster, Device
from lbrx.cli.parameters import Argument, Option
from lbrx.cli.paths import check_model
from lbrx.cli.running import reporting_fallbacks
from lbrx.cli.status import shown_progress
from lbrx.errors import UsageError


def imatrix(
    model: Annotated[Path, Argument("A model to run, or an importance matrix to combine with --add.")],
    out: Annotated[Path, Argument("The file to write: GGUF, or the legacy format if it ends in .dat.")],
    text: Annotated[
        list[Path] | None,
        Option("--text", metavar="FILE", help="A UTF-8 text file (default: a short mixed text). Can be repeated."),
    ] = None,
    add: Annotated[
        list[Path] | None, Option("--add", metavar="FILE", help="Add an importance matrix. Can be repeated.")
    ] = None,
    context: Annotated[int, Option(min=2, help="Tokens per chunk.")] = 512,
    max_chunks: Annotated[int | None, Option(min=1, help="Use only the first N chunks.")] = None,
    process_output: Annotated[bool, Option("--process-output", help="Measure the output matrix as well.")] = False,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace the output if it exists.")] = False,
    threads: Annotated[int | None, Option(min=1, help="Number of threads (default: all processors).")] = None,
    device: Device = "cpu",
    cluster: Cluster = None,
) -> None:
    """Measure which columns of the weights matter for a text.

    Runs the model and writes an importance matrix for lbrx quantize --imatrix and llama-quantize. If the run stops, run
    the same command to resume. lbrx inspect shows statistics of the result.

    Examples:

      lbrx imatrix Llama-3.2-1B imatrix.gguf --text calibration.txt

      lbrx imatrix model-q8_0.gguf imatrix.gguf --text prose.txt --text code.txt --max-chunks 100

      lbrx imatrix /shared/model /shared/imatrix.gguf --text /shared/text.txt --cluster auto

      lbrx imatrix first.gguf both.gguf --add second.gguf
    """
    from lbrx.jobs.imatrix.imatrix import combine
    from lbrx.jobs.imatrix.imatrix import imatrix as measure

    check_model(model)
    if _is_matrix(model):
        if text or not add:
            raise UsageError(f"{model}: is an importance matrix; expected others to --add, and no --text")
        entries = combine(out, [model, *add], overwrite=overwrite)
        print(f"{out}: {entries:,} entries of {1 + len(add)} importance matrices")
        return
    with reporting_fallbacks(_warn), shown_progress("measuring") as progress:
        result = measure(
            model,
            out,
            text,
            add=add or (),
            context=context,
            max_chunks=max_chunks,
            process_output=process_output,
            overwrite=overwrite,
            progress=progress,
            threads=threads,
            device=device,
            cluster=cluster,
        )
    if result.unused:
        _warn([f"{len(result.unused)} entries have experts that no token used, such as {result.unused[0]!r}"])
    print(f"{out}: {result.entries:,} entries, {result.measured_chunks:,} chunks")
    if sys.stdout.isatty():
        name = shlex.quote(str(out))
        print(f"next: lbrx quantize {shlex.quote(str(model))} model-q4_k_m.gguf --to q4_k_m --imatrix {name}")


def _is_matrix(path: Path) -> bool:
    """Whether a file is an importance matrix, not a model."""
    from lbrx.errors import FormatError
    from lbrx.jobs.imatrix.files import read_sums

    if path.is_dir() or path.suffix not in (".dat", ".gguf"):
        return False
    try:
        return bool(read_sums(path).entries)
    except FormatError:
        return False


def _warn(warnings: Sequence[str]) -> None:
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
