"""`lbrx quantize` with several types: progress, a picture and a table of the outputs."""

from __future__ import annotations

import json
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
    from lbrx.cli.progress import Reporter
    from lbrx.files.output.options import RunKeywords
    from lbrx.jobs.quantize.figures import Output
    from lbrx.jobs.quantize.several import SeveralPlan


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


def show_several(
    source: Path,
    out: Path,
    names: Sequence[str],
    choices: Mapping[str, Any],
    score: Path | None,
    calibration: Mapping[str, Any],
    limits: LimitOptions,
    options: RunOptions,
    report: Reporter,
    cluster: str | None,
) -> None:
    """Print what would be written for several types. With ``cluster``, its workers measure the importances."""
    from lbrx.jobs.quantize.quantize import plan_several_outputs

    check_model(source)
    own = {name: choice for name, choice in choices.items() if name != "to"}
    given: RunKeywords = {
        "overwrite": options.overwrite,
        "threads": limits.threads,
        "memory": limits.memory,
        "cluster": cluster,
    }
    with shown_progress("measuring") as measuring:
        plan = plan_several_outputs(
            source,
            out,
            names,
            own,
            **calibration,
            score=score,
            max_shard_bytes=limits.shard_size,
            measuring=measuring,
            options=given,
        )
    report.warnings(list(dict.fromkeys(text for each in plan.plans.values() for text in each.output.warnings)))
    if options.json_output:
        print(json.dumps({"event": "plan", **_fields(out, plan)}))
    else:
        _show_plan(out, plan)


def _fields(out: Path, plan: SeveralPlan) -> dict[str, Any]:
    outputs = [
        {
            "name": name,
            "write_bytes": 0 if name in plan.complete else each.file_bytes,
            "bytes": each.file_bytes,
            "bits_per_weight": each.quantization.bits_per_weight,
            "files": [layout.name for layout in each.output.layouts],
            "complete": name in plan.complete,
        }
        for name, each in plan.plans.items()
    ]
    return {"out": str(out), "outputs": outputs, "write_bytes": plan.write_bytes, "free_bytes": plan.free_bytes}


def _show_plan(out: Path, plan: SeveralPlan) -> None:
    from lbrx.base.system import format_bytes
    from lbrx.cli.console import columns, count_text, facts, output_console, plural, printable

    first = next(iter(plan.plans.values())).quantization
    waiting = len(plan.plans) - len(plan.complete)
    console = output_console()
    rows = [
        ("parameters", f"{count_text(first.parameters)} in {plural(len(first.coded), 'tensor')}"),
        ("output", str(out)),
        ("to write", f"{format_bytes(plan.write_bytes)} ({plan.write_bytes:,} bytes) in {plural(waiting, 'output')}"),
        ("free on disk", format_bytes(plan.free_bytes)),
    ]
    console.print(facts((name, printable(value)) for name, value in rows))
    table = columns("output", "size", "bits", "target", left=("output", "target"))
    for name, each in plan.plans.items():
        path = out / name
        target = "complete" if name in plan.complete else "replaces existing" if path.exists() else "new"
        bits = f"{each.quantization.bits_per_weight:.2f}"
        table.add_row(printable(name), format_bytes(each.file_bytes), bits, target)
    console.print()
    console.print(table)


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
