"""``lbrx.doctor``: what this machine has, and whether its GPU computes what the CPU computes."""

from __future__ import annotations

import platform
import shutil
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import LbrxError, UsageError
from lbrx.files.output.options import CountCallback

if TYPE_CHECKING:
    from lbrx.devices.metal.context import MetalContext
    from lbrx.devices.metal.driver.requirements import Check
    from lbrx.jobs.doctor.speed import SpeedRow


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one self-test; ``detail`` is the text of an error, or a remark."""

    name: str
    passed: bool
    error: float | None
    bound: float | None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """The machine and its GPU as names and values, and what ran on the GPU.

    ``shaders`` says where compiled shaders came from. ``memory`` has what Metal allocated before and after the tests,
    and what was transferred. ``speed`` is empty if it was not measured.
    """

    machine: dict[str, Any]
    metal: dict[str, Any]
    tests: tuple[Outcome, ...]
    requirements: tuple[Check, ...] = ()
    shaders: dict[str, Any] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)
    speed: tuple[SpeedRow, ...] = ()

    @property
    def is_good(self) -> bool:
        """Whether no test failed."""
        return all(test.passed for test in self.tests)


def doctor(
    *,
    emulated: bool = False,
    only: str | None = None,
    speed: bool | None = None,
    progress: CountCallback | None = None,
) -> DoctorReport:
    """Describe this machine, and compare every kernel of its GPU with the CPU.

    Without a GPU no test runs. ``emulated`` runs the same kernels in the emulator, on any machine. ``only`` is a part
    of the names of the tests to run. ``speed`` measures the GPU against the bandwidth of its memory; by default if all
    tests run, on a GPU.

    >>> report = doctor()
    >>> report.machine["cores"] >= 1, report.is_good
    (True, True)
    """
    machine = _machine()
    context, reason = _open_device(emulated)
    if context is None:
        return DoctorReport(machine, {"unavailable": reason}, (), _requirements())
    before = _allocations(context)
    tests = tuple(_run_tests(context, only, progress))
    memory = _memory(context, before)
    measures = only is None and not context.info.emulated if speed is None else speed
    rows = _speed(context, progress) if measures else ()
    return DoctorReport(machine, _device(context), tests, _requirements(), _shaders(context), memory, rows)


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
    """Return the clang version that the emulator uses, or why there is none."""
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


def _requirements() -> tuple[Check, ...]:
    """What a Mac needs; nothing on other machines."""
    from lbrx.devices.metal.driver.requirements import checked, versions

    found = versions()
    return checked(found) if "macOS" in found else ()


def _allocations(context: MetalContext) -> dict[str, int]:
    """What is allocated after everything that is idle was given back."""
    import gc

    gc.collect()
    context.synchronize()
    context.pool.trim()
    context.windows.clear()
    facts, pool = context.driver.facts(), context.pool.statistics()
    return {
        "allocated_bytes": int(facts.get("allocated_bytes", pool.lent_bytes + pool.free_bytes)),
        "mapped_bytes": int(facts.get("mapped_bytes", 0)),
    }


def _memory(context: MetalContext, before: dict[str, int]) -> dict[str, Any]:
    from lbrx.devices.metal.context.transfers import transfers

    pool, windows, counts = context.pool.statistics(), context.windows.statistics, transfers(context)
    after = _allocations(context)
    return {
        "allocated_before_bytes": before["allocated_bytes"],
        "allocated_after_bytes": after["allocated_bytes"],
        "mapped_after_bytes": after["mapped_bytes"],
        "copied_bytes": counts.copied_bytes,
        "wrapped_bytes": counts.wrapped_bytes,
        "returned_bytes": counts.returned_bytes,
        "dispatches": counts.dispatches,
        "buffers_allocated": pool.misses,
        "buffers_used_again": pool.hits,
        "windows_wrapped": windows.wrapped,
        "windows_used_again": windows.hits,
        "windows_refused": windows.refused,
    }


def _shaders(context: MetalContext) -> dict[str, Any]:
    """Where the compiled shaders of the tests came from."""
    cache = context.shaders
    return {
        "compiled_ahead_of_time": cache.prebuilt.description if cache.prebuilt.reason is None else "no",
        "reason": cache.prebuilt.reason or "none",
        "libraries_compiled_ahead_of_time": cache.statistics.prebuilt,
        "libraries_with_cached_code": cache.statistics.loaded,
        "libraries_compiled_now": cache.statistics.compiled,
    }


def _speed(context: MetalContext, progress: CountCallback | None) -> tuple[SpeedRow, ...]:
    from lbrx.jobs.doctor.speed import measured_speed

    return measured_speed(context, "tiny" if context.info.emulated else "large", progress)


def _device(context: MetalContext) -> dict[str, Any]:
    info = context.info
    major, minor = info.language
    return {
        "name": info.name,
        "emulated": info.emulated,
        "family": info.family.name.lower(),
        "cores": info.cores or "unknown",
        "language": f"{major}.{minor}",
        "unified_memory": info.unified_memory,
        "max_buffer_bytes": info.max_buffer_bytes,
        "threadgroup_memory_bytes": info.threadgroup_memory_bytes,
        "working_set_bytes": info.working_set_bytes,
        "driver": info.driver_version,
        **context.driver.facts(),
    }


def _run_tests(context: MetalContext, only: str | None, progress: CountCallback | None) -> list[Outcome]:
    from lbrx.jobs.doctor import self_test

    every = self_test.registered_self_tests()
    tests = {name: test for name, test in every.items() if only is None or only in name}
    if not tests and only is not None:
        raise UsageError(f"no test name contains {only!r}; expected part of a name such as {next(iter(every))!r}")
    rows = []
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
