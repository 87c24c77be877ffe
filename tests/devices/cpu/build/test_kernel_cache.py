"""Kernels that other processes have compiled: next to each other, and damaged."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

KERNELS = """
from numba import njit
from lbrx.devices.cpu.simd.elements import ELEMENT_FUNCTIONS

store = ELEMENT_FUNCTIONS["store_i64"]


def make(factor):
    @njit
    def grown(steps):  # calls itself twice, so that it stays a function of its own
        return 1 if steps < 2 else factor * grown(steps - 1) + grown(steps - 2)

    return grown


grown_by_two, grown_by_three = make(2), make(3)


def two(place, steps):
    store(place, 0, grown_by_two(steps))


def three(place, steps):
    store(place, 0, grown_by_three(steps))
"""
CALLS = """
import ctypes, sys
from lbrx.devices.cpu.build.kernel_cache import EXCEPTION_ADDRESS, RESULT_ADDRESS, native_function, statistics

for name in sys.argv[1:]:
    result = ctypes.c_int64()
    native_function("alike", name, 2)(RESULT_ADDRESS, EXCEPTION_ADDRESS, ctypes.addressof(result), 4)
    print(name, result.value)
print("compiled", statistics.compiled)
"""
RESULTS = {"two": 17, "three": 43}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "alike.py").write_text(KERNELS)
    return tmp_path


def run(directory: Path, *names: str) -> dict[str, int]:
    """The results of kernels, and how many had to be compiled for them, in a process of its own."""
    paths = os.pathsep.join((str(directory), os.environ.get("PYTHONPATH", "")))
    environment = {**os.environ, "LBRX_CACHE_DIR": str(directory), "PYTHONPATH": paths}
    command = [sys.executable, "-c", CALLS, *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {name: int(number) for name, number in (line.split() for line in done.stdout.splitlines())}


def test_kernels_of_several_processes_do_not_call_each_others_functions(directory: Path) -> None:
    for name, result in RESULTS.items():
        assert run(directory, name) == {name: result, "compiled": 1}
    assert run(directory, *RESULTS) == {**RESULTS, "compiled": 0}
    assert run(directory, *reversed(RESULTS)) == {**RESULTS, "compiled": 0}


@pytest.mark.parametrize("damage", [b"", b"not a kernel", None])
def test_a_damaged_kernel_is_compiled_again(directory: Path, damage: bytes | None) -> None:
    assert run(directory, "two")["compiled"] == 1
    (entry,) = (directory / "kernels").iterdir()
    whole = entry.read_bytes()
    entry.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]) if damage is None else damage)
    assert run(directory, "two") == {"two": RESULTS["two"], "compiled": 1}
    assert entry.read_bytes() == whole


def test_kernels_that_nobody_reads_are_removed(directory: Path) -> None:
    (directory / "kernels").mkdir()
    for name, days in (("old.o", 91), ("old.tmp", 91), ("recent.o", 89)):
        path = directory / "kernels" / name
        path.write_bytes(b"lbrx kernel 1\n")
        os.utime(path, (time.time() - days * 86400,) * 2)
    assert run(directory, "two")["compiled"] == 1
    names = {path.name for path in (directory / "kernels").iterdir()}
    assert len(names) == 2
    assert "recent.o" in names


def test_entries_that_are_exchanged_are_made_anew(directory: Path) -> None:
    run(directory, "two", "three")
    first, second = sorted((directory / "kernels").glob("*.o"))
    first_bytes, second_bytes = first.read_bytes(), second.read_bytes()
    first.write_bytes(second_bytes)
    second.write_bytes(first_bytes)
    assert run(directory, "two", "three") == {**RESULTS, "compiled": 2}
    assert run(directory, "two", "three") == {**RESULTS, "compiled": 0}


def test_a_directory_that_others_can_write_is_not_used(directory: Path) -> None:
    run(directory, "two")
    (directory / "kernels").chmod(0o777)
    assert run(directory, "two") == {"two": 17, "compiled": 1}
    (directory / "kernels").chmod(0o755)
    assert run(directory, "two") == {"two": 17, "compiled": 0}
