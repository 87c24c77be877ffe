"""`lbrx bench`: compare the speed of the GPU and the CPU."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from lbrx.cli.parameters import Option
from lbrx.registry import BENCHMARKS

if TYPE_CHECKING:
    from rich.table import Table

    from lbrx.jobs.bench.measure import BenchResult

EXIT_DIFFERENT = 1
_DEVICES = ", ".join(BENCHMARKS)


def bench(
    device: Annotated[str, Option(help=f"Device to compare with the CPU: {_DEVICES}.")] = next(iter(BENCHMARKS)),
    size: Annotated[str | None, Option(help="tiny, small or large (default: large; tiny if emulated).")] = None,
    only: Annotated[str | None, Option(metavar="TEXT", help="Run only cases whose name contains TEXT.")] = None,
    repeats: Annotated[int, Option(min=1, help="Runs per case. The fastest one counts.")] = 5,
    tune: Annotated[bool, Option("--tune", help="First find and store the fastest kernel variants.")] = False,
    out: Annotated[
        Path | None,
        Option(metavar="DIR", help="Write a report with plots to this directory."),
    ] = None,
    emulated: Annotated[bool, Option("--emulated", help="Use the emulated GPU. Works on any machine.")] = False,
    capture: Annotated[
        Path | None,
        Option(metavar="FILE.gputrace", help="Record a trace for Xcode. Needs MTL_CAPTURE_ENABLED=1."),
    ] = None,
    json_output: Annotated[bool, Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Compare the speed of CPU and GPU.

    Runs typical model operations (products with plain and quantized weights, attention, norms) on both devices and
    compares times and results. Metal times include the launch. Emulator times say nothing about a real GPU; use
    --emulated only to check that everything runs. The exit code is 1 if the results differ by more than the allowed
    error.

    Examples:

      lbrx bench

      lbrx bench --only q4_k --tune --out report

      lbrx bench --emulated
    """
    from lbrx.cli.console import error_console
    from lbrx.jobs.bench.bench import bench as measure
    from lbrx.jobs.bench.report import as_json
    from lbrx.plots.bench_report import check_report, write_report

    if out is not None:
        check_report(out)
    with error_console().status("") as status:
        result = measure(
            device=device,
            size=size,
            only=only,
            repeats=repeats,
            tune=tune,
            emulated=emulated,
            capture=capture,
            progress=status.update,
        )
    page = None if out is None else write_report(out, result)
    if json_output:
        sys.stdout.write(as_json(result) + "\n")
    else:
        _print(result, page)
    if not all(row.agrees for row in result.rows):
        raise SystemExit(EXIT_DIFFERENT)


def _print(result: BenchResult, page: Path | None) -> None:
    from lbrx.cli.console import output_console, printable
    from lbrx.jobs.bench.report import EMULATED_NOTE

    console = output_console()
    console.print(f"{printable(result.device)}, size {result.size}")
    if result.emulated:
        console.print(EMULATED_NOTE, style="yellow")
    console.print(_table(result))
    if page is not None:
        console.print(f"report: {printable(str(page))}")


def _table(result: BenchResult) -> Table:
    from lbrx.cli.console import columns

    names = ("work", "CPU ms", "Metal ms", "GPU ms", "times faster", "GB/s", "GFLOP/s", "difference")
    table = columns(*names, left=("work",))
    for row in result.rows:
        table.add_row(
            row.name,
            f"{row.cpu_seconds * 1e3:.3f}",
            f"{row.metal_seconds * 1e3:.3f}",
            f"{row.gpu_seconds * 1e3:.3f}",
            f"{row.speedup:.2f}",
            f"{row.gigabytes_per_second:.1f}",
            f"{row.gigaflops:.1f}",
            f"{row.error:.1e}",
            style=None if row.agrees else "red",
        )
    return table
