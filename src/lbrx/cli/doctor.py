"""`lbrx doctor`: what this machine has, and whether its GPU computes what the CPU computes."""

from __future__ import annotations

import json
import platform
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.cli.parameters import Option
from lbrx.cli.status import shown_progress
from lbrx.errors import LbrxError, UsageError

if TYPE_CHECKING:
    from lbrx.devices.metal.context import MetalContext

EXIT_FAILED = 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one self-test; ``detail`` is the text of an error, or what there is to say."""

    name: str
    passed: bool
    error: float | None
    bound: float | None
    detail: str = ""


def doctor(
    emulated: Annotated[bool, Option("--emulated", help="Test the emulated GPU, on any machine.")] = False,
    only: Annotated[str | None, Option(metavar="TEXT", help="Run the tests with this in their names.")] = None,
    json_output: Annotated[bool, Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Show what this machine has, and test its GPU.

    Every kernel of the Metal backend runs a small self-test on the GPU and is compared with the CPU. Without a GPU only
    the machine is described; --emulated tests the same kernels on the CPU. The exit code is 1 if a test fails.

    Examples:

      lbrx doctor

      lbrx doctor --emulated --only passes
    """
    machine = _machine()
    context, reason = _open_device(emulated)
    rows = [] if context is None else _run_tests(context, only)
    device = {"unavailable": reason} if context is None else _device(context)
    if json_output:
        fields = {"machine": machine, "metal": device, "tests": [_row_fields(row) for row in rows]}
        sys.stdout.write(json.dumps(fields, indent=2) + "\n")
    else:
        _print(machine, device, rows)
    if not all(row.passed for row in rows):
        raise SystemExit(EXIT_FAILED)


def _machine() -> dict[str, Any]:
    import psutil

    from lbrx.base import system
    from lbrx.version import __version__

    cache = system.cache_directory()
    disk = shutil.disk_usage(Path.cwd())
    return {
        "lbrx": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": system.cpu_count(),
        "memory_bytes": int(psutil.virtual_memory().total),
        "available_bytes": system.available_bytes(),
        "page_bytes": system.page_bytes(),
        "free_disk_bytes": disk.free,
        "cpu_compiler": _version_of("numba"),
        "shader_compiler": _shader_compiler(),
        "cache_directory": str(cache),
        "cache_bytes": _directory_bytes(cache),
    }


def _version_of(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"{package} is not installed"


def _shader_compiler() -> str:
    """The clang of the emulator, or why there is none."""
    from lbrx.devices.metal.emulator.toolchain import find_toolchain

    try:
        return find_toolchain().version
    except LbrxError as error:
        return str(error)


def _directory_bytes(directory: Path) -> int:
    nbytes = 0
    for path in directory.rglob("*"):
        with suppress(FileNotFoundError):  # another process may clean up
            nbytes += path.lstat().st_size
    return nbytes


def _open_device(emulated: bool) -> tuple[MetalContext | None, str]:
    from lbrx.devices.metal.context import MetalContext
    from lbrx.devices.metal.errors import MetalUnavailable

    try:
        return MetalContext.open("emulated" if emulated else "native"), ""
    except MetalUnavailable as error:
        if emulated:
            raise
        return None, str(error)


def _device(context: MetalContext) -> dict[str, Any]:
    info = context.info
    return {
        "name": info.name,
        "emulated": info.emulated,
        "family": info.family.name.lower(),
        "unified_memory": info.unified_memory,
        "max_buffer_bytes": info.max_buffer_bytes,
        "threadgroup_memory_bytes": info.threadgroup_memory_bytes,
        "working_set_bytes": info.working_set_bytes,
        "driver": info.driver_version,
    }


def _run_tests(context: MetalContext, only: str | None) -> list[Outcome]:
    from lbrx.jobs.doctor.self_test import registered_self_tests

    every = registered_self_tests()
    tests = {name: test for name, test in every.items() if only is None or only in name}
    if not tests and only is not None:
        raise UsageError(f"no test has {only!r} in its name; expected a part of one, such as {next(iter(every))!r}")
    rows = []
    with shown_progress("testing") as progress:
        for number, (name, test) in enumerate(tests.items()):
            if progress is not None:
                progress(number, len(tests), name)
            try:
                result = test(context)
            except LbrxError as error:
                rows.append(Outcome(name, False, None, None, str(error)))
            else:
                rows.append(Outcome(name, result.passed, result.error, result.bound, result.detail))
    return rows


def _row_fields(row: Outcome) -> dict[str, Any]:
    numbers = {"error": row.error, "bound": row.bound}
    texts = {name: None if value is None else float(f"{value:.6g}") for name, value in numbers.items()}
    return {"name": row.name, "passed": row.passed, **texts, "detail": row.detail}


def _print(machine: dict[str, Any], device: dict[str, Any], rows: list[Outcome]) -> None:
    from rich.text import Text

    from lbrx.cli.console import columns, facts, output_console, plural, printable

    console = output_console()
    console.print(facts([_fact(name, value) for name, value in machine.items()]))
    console.print()
    console.print(facts([_fact(f"metal {name}", value) for name, value in device.items()]))
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
