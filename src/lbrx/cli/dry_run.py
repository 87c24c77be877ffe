"""``--dry-run``: print a plan and check that it can be written. All commands print the same rows in the same order."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from lbrx.base.system import format_bytes
from lbrx.cli.console import facts, output_console, plural, printable
from lbrx.cli.progress import OutputSummary
from lbrx.files.remote.paths import without_secrets

if TYPE_CHECKING:
    from lbrx.cli.options import RunOptions
    from lbrx.files.output.plan import OutputPlan

Row = tuple[str, str]


def show_plan(
    plan: OutputPlan,
    options: RunOptions,
    *,
    inputs: Iterable[Row] = (),
    costs: Iterable[Row] = (),
    fields: Mapping[str, Any] | None = None,
) -> None:
    """Print a plan, then raise if the target exists or the disk has too little space.

    ``inputs`` and ``costs`` are rows of this command only, before and after those of the output. ``fields`` are added
    to the JSON event.
    """
    if options.json_output:
        print(json.dumps({"event": "plan", **_fields(plan), **(fields or {})}))
        _check_target(plan, options)
        return
    rows = [*inputs, *_output_rows(plan), *costs]
    try:
        rows += _check_target(plan, options)
    finally:
        output_console().print(facts((name, printable(without_secrets(value))) for name, value in rows))


def _fields(plan: OutputPlan) -> dict[str, Any]:
    summary = OutputSummary(plan)
    return {
        "out": str(plan.out),
        "types": summary.types,
        "write_bytes": summary.file_bytes,
        "bits_per_weight": summary.bits_per_weight,
        "files": [layout.name for layout in plan.layouts] + [file.name for file in plan.side_files],
    }


def _output_rows(plan: OutputPlan) -> Iterable[Row]:
    summary = OutputSummary(plan)
    yield "output", str(plan.out)
    yield "tensors", f"{sum(summary.types.values()):,}"
    yield "types", summary.types_text()
    if summary.bits_per_weight is not None:
        yield "bits per weight", f"{summary.bits_per_weight:.4f}"
    size = f"{format_bytes(summary.file_bytes)} ({summary.file_bytes:,} bytes)"
    yield "to write", f"{size} in {plural(len(plan.layouts), 'file')}"
    if plan.side_files:
        yield "other files", ", ".join(file.name for file in plan.side_files)


def _check_target(plan: OutputPlan, options: RunOptions) -> list[Row]:
    """Return rows about the target, or print the JSON event of replaced files. Raise if it cannot be written."""
    from lbrx.files.output.run import check_output, staging_of

    free_bytes = check_output(plan, options.overwrite)
    if free_bytes is None:
        return []
    replaced = staging_of(plan).replaced_files() if options.overwrite else []
    names = [file.name for file in replaced]
    if replaced and options.json_output:
        print(json.dumps({"event": "replaces", "out": str(plan.out), "files": names}))
    is_replaced = plan.out.is_file() or (plan.is_directory and plan.out.is_dir() and any(plan.out.iterdir()))
    rows = [("target", "replaces existing" if is_replaced else "new"), ("free on disk", format_bytes(free_bytes))]
    if replaced:
        nbytes = sum(file.stat().st_size for file in replaced)
        rows.append(("replaces", f"{plural(len(replaced), 'file')}, {format_bytes(nbytes)}: {', '.join(names)}"))
    return rows
