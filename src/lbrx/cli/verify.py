"""`lbrx verify`: check a model on disk for damage and inconsistencies."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

from lbrx.cli.parameters import Argument, Option
from lbrx.cli.paths import check_model
from lbrx.cli.status import shown_progress
from lbrx.jobs.verify import Severity, VerifyReport
from lbrx.jobs.verify import verify as verify_model

_STYLES = {Severity.error: "bold red", Severity.warning: "yellow", Severity.note: "dim"}
EXIT_BROKEN = 1


def verify(
    path: Annotated[Path, Argument("A weights file or a model directory.")],
    quick: Annotated[bool, Option("--quick", help="Read only headers and small files, no weights.")] = False,
    base: Annotated[
        Path | None, Option("--base", help="The base model, whose chat template the model should have.")
    ] = None,
    json_output: Annotated[bool, Option("--json", help="Print the full result as JSON.")] = False,
) -> None:
    """Check a model for damage and inconsistencies.

    Checks headers, the shard index, names and shapes against the architecture, the vocabulary against the embedding,
    special tokens, the chat template, files with code, generation settings, checksums, and every value for NaN and
    infinities. The exit code is 1 if there is an error.

    Examples:

      lbrx verify merged

      lbrx verify model-q4_k_m.gguf --quick

      lbrx verify merged --base models/llama

      lbrx verify merged --json > report.json
    """
    check_model(path, may_be_adapter=True)
    if base is not None:
        check_model(base)
    with shown_progress("checking") as progress:
        report = verify_model(path, quick=quick, base=base, progress=progress)
    if json_output:
        sys.stdout.write(json.dumps(report.as_json(), indent=2) + "\n")
    else:
        _print(report)
    if not report.is_good:
        raise SystemExit(EXIT_BROKEN)


def _print(report: VerifyReport) -> None:
    from rich.text import Text

    from lbrx.base.system import format_bytes
    from lbrx.cli.console import columns, output_console, plural, printable

    console = output_console()
    if report.findings:
        table = columns("found", "where", "what", left=("found", "where", "what"))
        for finding in report.findings:
            style = _STYLES[finding.severity]
            table.add_row(Text(finding.severity.value, style), printable(finding.place), printable(finding.text))
        table.columns[2].no_wrap = False
        console.print(table)
        console.print()
    for finding in report.findings:
        if finding.details:
            lines = "\n".join(printable(line) for line in finding.details.splitlines())
            console.print(Text(f"{lines}\n"), soft_wrap=True)
    verdict = "good" if report.is_good else f"broken, {plural(len(report.errors), 'error')}"
    warned = f", {plural(len(report.warnings), 'warning')}" if report.warnings else ""
    size = f"{plural(report.tensors, 'tensor')}, {format_bytes(report.nbytes)}"
    console.print(
        Text(f"{printable(str(report.path))}: {verdict}{warned}", style="bold" if report.is_good else "bold red"),
        soft_wrap=True,
    )
    done = ", ".join(check.name for check in report.checks if check.is_done)
    console.print(f"{size}; checked: {done}", style="dim")
    for check in report.checks:
        if check.reason is not None:
            console.print(Text(f"not checked: {check.name} ({printable(check.reason)})", "dim"))
