"""`lbrx doctor`: describe this machine and test its GPU against the CPU."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from lbrx.cli.parameters import Option
from lbrx.cli.status import shown_progress

if TYPE_CHECKING:
    from rich.console import Console

    from lbrx.jobs.doctor.doctor import DoctorReport

EXIT_FAILED = 1


def doctor(
    emulated: Annotated[bool, Option("--emulated", help="Test the emulated GPU. Works on any machine.")] = False,
    only: Annotated[str | None, Option(metavar="TEXT", help="Run only tests whose name contains TEXT.")] = None,
    out: Annotated[
        Path | None, Option(metavar="FILE.json", help="Write the full result to a file, to attach to a report.")
    ] = None,
    json_output: Annotated[bool, Option("--json", help="Print the full result as JSON.")] = False,
) -> None:
    """Describe this machine and test its GPU.

    Runs a small self-test of every Metal kernel on the GPU, compares the results with the CPU, and measures the speed.
    Without a GPU, only the machine is described; --emulated tests the same kernels on the CPU. The exit code is 1 if a
    test fails.

    Examples:

      lbrx doctor

      lbrx doctor --out doctor.json

      lbrx doctor --emulated --only passes
    """
    from lbrx.base.atomic_write import write_atomically
    from lbrx.jobs.doctor.doctor import doctor as examine
    from lbrx.jobs.doctor.report import as_json

    with shown_progress("testing") as progress:
        report = examine(emulated=emulated, only=only, progress=progress)
    if out is not None:
        write_atomically(out, as_json(report).encode())
    if json_output:
        sys.stdout.write(as_json(report))
    else:
        _print(report)
    if not report.is_good:
        raise SystemExit(EXIT_FAILED)


def _print(report: DoctorReport) -> None:
    from rich.text import Text

    from lbrx.cli.console import columns, facts, output_console, plural, printable

    console, rows = output_console(), report.tests
    console.print(facts([_fact(name, value) for name, value in report.machine.items()]))
    for title, values in (("metal", report.metal), ("shaders", report.shaders), ("memory", report.memory)):
        if values:
            console.print()
            console.print(facts([_fact(f"{title} {name}", value) for name, value in values.items()]))
    _print_requirements(console, report)
    _print_speed(console, report)
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


def _print_requirements(console: Console, report: DoctorReport) -> None:
    from rich.text import Text

    from lbrx.cli.console import columns
    from lbrx.devices.metal.driver.requirements import NOT_INSTALLED

    if not report.requirements:
        return
    table = columns("needs", "version", "found", "", "for", left=("needs", "version", "found", "", "for"))
    for check in report.requirements:
        wrong = "missing" if check.found == NOT_INSTALLED else "too old"
        missing = Text(wrong, "bold red") if check.is_needed else Text("without", "yellow")
        result = Text("good", "green") if check.is_met else missing
        table.add_row(check.name, check.least, check.found, result, check.reason)
    console.print()
    console.print(table)


def _print_speed(console: Console, report: DoctorReport) -> None:
    from lbrx.cli.console import columns

    if not report.speed:
        return
    table = columns("speed", "GPU ms", "with launch ms", "GB/s", "of the bandwidth", left=("speed",))
    for row in report.speed:
        share = "-" if row.share is None else f"{row.share:.0%}"
        times = f"{row.gpu_seconds * 1e3:.3f}", f"{row.wall_seconds * 1e3:.3f}"
        table.add_row(row.name, *times, f"{row.gigabytes_per_second:.1f}", share)
    console.print()
    console.print(table)


def _fact(name: str, value: Any) -> tuple[str, str]:
    from lbrx.base.system import format_bytes
    from lbrx.cli.console import printable

    if name.endswith("_bytes") and isinstance(value, int):
        return name.removesuffix("_bytes").replace("_", " "), format_bytes(value)
    text = {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
    return name.replace("_", " "), printable(text)
