"""`lbrx quantize` with several types: progress, a picture and a table of the outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lbrx.cli.options import LimitOptions, RunOptions
from lbrx.cli.paths import check_model
from lbrx.cli.status import shown_progress

if TYPE_CHECKING:
    from lbrx.jobs.quantize.figures import Output


def write_several(
    source: Path,
    out: Path,
    choices: Mapping[str, Any],
    score: Path | None,
    run: Callable[..., None],
    limits: LimitOptions,
    options: RunOptions,
) -> None:
    """Write all outputs with ``run``, which reports on them, and print a table."""
    from lbrx.jobs.quantize.quantize import quantize

    check_model(source)
    draw = None if find_spec("matplotlib") is None else _draw
    with ExitStack() as status:
        measuring = status.enter_context(shown_progress("measuring"))
        given: dict[str, Any] = {"measuring": measuring, "max_shard_bytes": limits.shard_size}
        run(
            partial(quantize, source, out, **choices, **given, score=score, draw=draw),
            next_command=f"lbrx upload {out} OWNER/NAME",
        )
    if not options.quiet and not options.json_output:
        _show(out)


def _draw(path: Path, outputs: Sequence[Output]) -> None:
    from lbrx.plots.size_against_divergence import Point, draw_points

    points = [
        Point(each.type_name, each.file_bytes, *each.quality.divergence) for each in outputs if each.quality is not None
    ]
    draw_points(path, points, "Size against divergence from the source")


def _show(out: Path) -> None:
    from lbrx.base.system import format_bytes
    from lbrx.cli.console import columns, output_console, printable
    from lbrx.jobs.quantize.figures import read_record

    outputs = sorted(read_record(out).values(), key=lambda each: each.file_bytes)
    is_scored = any(each.quality is not None for each in outputs)
    headings = ["file", "size", "bits", *(["KL", "same top", "perplexity"] if is_scored else [])]
    table = columns(*headings, left=("file",))
    for each in outputs:
        cells = [printable(each.name), format_bytes(each.file_bytes), f"{each.bits_per_weight:.2f}"]
        if (quality := each.quality) is not None:
            cells += [
                f"{quality.divergence[0]:.5f}",
                f"{quality.same_top[0]:.2%}",
                f"{quality.perplexity[0]:.4f}",
            ]
        table.add_row(*cells)
    output_console().print(table)
