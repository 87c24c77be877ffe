"""`lbrx doctor`: describe this machine and test its GPU against the CPU."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

from lbrx.cli.parameters import Option
from lbrx.cli.status import shown_progress

if TYPE_CHECKING:
    from lbrx.jobs.doctor.doctor import DoctorReport, Outcome

EXIT_FAILED = 1


def doctor(
    emulated: Annotated[bool, Option("--emulated", help="Test the emulated GPU. Works on any machine.")] = False,
    only: Annotated[str | None, Option(metavar="TEXT", help="Run only tests whose name contains TEXT.")] = None,
    json_output: Annotated[bool, Option("--json", help="Print the full result as JSON.")] = False,
) -> None:
    """Describe this machine and test its GPU.

    Runs a small self-test of every Metal kernel on the GPU and compares the results with the CPU. Without a GPU, only
    the machine is described; --emulated tests the same kernels on the CPU. The exit code is 1 if a test fails.

    Examples:

      lbrx doctor

      lbrx doctor --emulated --only passes
    """
    from lbrx.jobs.doctor.doctor import doctor as examine

    with shown_progress("testing") as progress:
        report = examine(emulated=emulated, only=only, progress=progress)
    if json_output:
        tests = [_test_fields(test) for test in report.tests]
        fields = {"machine": report.machine, "metal": report.metal, "tests": tests}
        sys.stdout.write(json.dumps(fields, indent=2) + "\n")
    else:
        _print(report)
    if not report.is_good:
        raise SystemExit(EXIT_FAILED)


def _test_fields(row: Outcome) -> dict[str, Any]:
    numbers = {"error": row.error, "bound": row.bound}
    texts = {name: None if value is None else float(f"{value:.6g}") for name, value in numbers.items()}
    return {"name": row.name, "passed": row.passed, **texts, "detail": row.detail}


def _print(report: DoctorReport) -> None:
    from rich.text import Text

    from lbrx.cli.console import columns, facts, output_console, plural, printable

    console, rows = output_console(), report.tests
    console.print(facts([_fact(name, value) for name, value in report.machine.items()]))
    console.print()
    console.print(facts([_fact(f"metal {name}", value) for name, value in report.metal.items()]))
    if not rows:
        return
    table = columns("test", "result", "error", "allowed", "detail", left=("test", "result", "detail"))
    for row in rows:
        verdict = Text("good", "green") if row.passed else Text("failed", "bold red")
        error, bound = (("-" if value is None else f"{value:.3g}") for value in (row.error, row.bound))
        table.add_row(printable(row.name), verdict, error, bound, printable(row.detail))
    console.print()
    console.print(table)
    failed = sum(not row.passed for row in rows)
    console.print()
    console.print(f"{plural(len(rows), 'test')}, {failed or 'none'} failed", style="bold red" if failed else "bold")


def _fact(name: str, value: Any) -> tuple[str, str]:
    from lbrx.base.system import format_bytes
    from lbrx.cli.console import printable

    if name.endswith("_bytes") and isinstance(value, int):
        return name.removesuffix("_bytes").replace("_", " "), format_bytes(value)
    text = {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
    return name.replace("_", " "), printable(text)
