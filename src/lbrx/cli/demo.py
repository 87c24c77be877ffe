"""`lbrx demo`: a small tour, on models that it makes itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Annotated

import numpy as np
import typer
from rich.console import Console

from lbrx import demo as models
from lbrx.checkpoint import Checkpoint, open_checkpoint
from lbrx.cli.console import columns, count_text, output_console, plural
from lbrx.errors import LbrxError
from lbrx.output import save
from lbrx.system import format_bytes

SHARE_OF_BASE = 0.6
_BAR_WIDTH = 30


def demo(
    output: Annotated[Path, typer.Option("--output", help="Where the files go.")] = Path("demo-output"),
) -> None:
    """Make two small models, compare them and blend them.

    The first run compiles its kernels, which takes some seconds; later runs load them from a cache.
    """
    console = output_console()
    with _step(console, "1. Make two small Llama models, the second a fine-tune of the first"):
        base = open_checkpoint(models.write_model(output / "base", models.base_tensors()))
        tuned = open_checkpoint(models.write_model(output / "tuned", models.tuned_tensors(base)))
        for model in (base, tuned):
            _print_model(console, model)
    with _step(console, "2. How far did each layer move? One pass over each tensor of both"):
        _print_changes(console, models.layer_changes(base, tuned))
    target = output / "blend.safetensors"
    with _step(console, f"3. Blend them, {SHARE_OF_BASE} * base + {1 - SHARE_OF_BASE:.1f} * tuned, streamed to a file"):
        save(target, models.blended(base, tuned, SHARE_OF_BASE), {"format": "pt"})
        blend = open_checkpoint(target)
        _print_model(console, blend)
    with _step(console, "4. Check the result"):
        for line in _checks(blend, base, tuned):
            console.print(f"   {line}")
    console.print(f"The files are in {output}. Look at one: lbrx inspect {target} --tensors", soft_wrap=True)


@contextmanager
def _step(console: Console, title: str) -> Iterator[None]:
    console.print(title, style="bold")
    start = perf_counter()
    yield
    console.print(f"   {perf_counter() - start:.2f} s\n", style="dim")


def _print_model(console: Console, model: Checkpoint) -> None:
    parameters = sum(tensor.size for tensor in model.values())
    text = f"   {model.path}: {count_text(parameters)} parameters in {plural(len(model), 'tensor')}"
    console.print(f"{text}, {format_bytes(model.nbytes)}", soft_wrap=True)


def _print_changes(console: Console, changes: Sequence[models.LayerChange]) -> None:
    largest = max(change.relative for change in changes)
    table = columns("   layer", "difference", "relative", "", left=("",))
    for change in changes:
        bar = "#" * round(_BAR_WIDTH * change.relative / largest)
        table.add_row(str(change.layer), f"{change.difference:.3f}", f"{change.relative:.2%}", bar)
    console.print(table)


def _checks(blend: Checkpoint, base: Checkpoint, tuned: Checkpoint) -> Iterator[str]:
    differing = models.differing_elements(blend, base, tuned, SHARE_OF_BASE)
    if differing:
        raise LbrxError(f"{blend.path}: {plural(differing, 'element')} differ from what NumPy computes")
    yield "every element is, bit for bit, what NumPy computes in float32"
    if find_spec("safetensors") is None:
        yield "the safetensors library is not installed, so it was not asked to read the file"
        return
    from safetensors import safe_open

    with safe_open(blend.path, framework="numpy") as file:
        same = all(np.array_equal(file.get_tensor(name), tensor) for name, tensor in blend.items())
    if not same:
        raise LbrxError(f"{blend.path}: the safetensors library does not read what lbrx wrote")
    yield f"the safetensors library reads the same values from all {plural(len(blend), 'tensor')}"
