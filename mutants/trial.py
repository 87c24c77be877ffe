"""Trying a mutant: the tests that execute its lines run in a copy of the tree that has the changed source."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from mutants.coverage_map import CoverageMap, line_keys
from mutants.sample import Mutant

FIRST_TESTS, FIRST_SECONDS = 60, 20.0  # of a quick selection, which kills most
ALL_SECONDS = 150.0  # of all tests that are run for a mutant
LEAST_TESTS = 8  # with fewer, the tests of the folder that mirrors the source are run as well
FAR_TESTS = ("tests/devices/metal", "tests/docs", "tests/cluster", "tests/test_mutants", "tests/test_soak")
NEIGHBOUR_SECONDS = 400.0  # of processor time for them
MOST_BROKEN = 3  # tests in a group that fail without the mutant, too
HANGING = 5  # times as long by the clock as the processor time that a run may take
MOST_BYTES = 6 << 30  # resident memory of a test run
_passing: set[str] = set()  # tests that were seen to pass without a mutant
_PYTEST_FAILED = (1, 2, 3, 4)  # failures, interruption, errors of collection


@dataclass(frozen=True)
class Outcome:
    """How a mutant fared: "killed", "timeout" or "survived", by how many tests, and the first that failed."""

    mutant: Mutant
    result: str
    tests: int
    seconds: float
    killer: str = ""

    @property
    def is_killed(self) -> bool:
        return self.result != "survived"


def copy_tree(root: Path, target: Path) -> Path:
    """Copy what tests need of a checkout."""
    shutil.copytree(root, target, symlinks=True, ignore=shutil.ignore_patterns(".*", "__pycache__"))
    return target


def selected(covered: CoverageMap, mutant: Mutant, original: str) -> list[list[str]]:
    """The tests for a mutant in their order: a quick selection, then the others, cheap ones first."""
    keys = line_keys(original)
    tests = covered.covering(mutant.file, keys[mutant.first - 1 : mutant.last])
    quick: list[str] = []
    seconds = 0.0
    # In turn from each test file, more from those near to the source; which test of a file depends on the mutant.
    turns: Counter[str] = Counter()
    ranked = []
    for test in sorted(tests, key=lambda test: hashlib.sha256(f"{mutant.after}{test}".encode()).digest()):
        file = test.partition("::")[0]
        turns[file] += 1
        ranked.append((turns[file] / (1 + 4 * _nearness(file, mutant.file)), test))
    for _, test in sorted(ranked):
        if len(quick) < FIRST_TESTS and seconds + covered.seconds[test] <= FIRST_SECONDS:
            quick.append(test)
            seconds += covered.seconds[test]
    rest = []
    for test in sorted(tests - set(quick), key=lambda test: (covered.seconds[test], test)):
        seconds += covered.seconds[test]
        if seconds <= ALL_SECONDS:
            rest.append(test)
    folder = f"tests/{Path(mutant.file).parent.as_posix()}"
    return [quick, rest, [folder] if len(tests) < LEAST_TESTS else []]


def _nearness(test_file: str, source: str) -> int:
    """How many leading parts of their paths are equal: tests mirror sources."""
    pairs = zip(Path(test_file).parts[1:], Path(source).parts, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def neighbours(tree: Path, mutant: Mutant, most_files: int) -> list[list[str]]:
    """Test files for a mutant if it is not known which tests execute it: those that name its module, those
    of its folder, and those of other folders that use most of its words."""
    module = f"lbrx.{mutant.file.removesuffix('.py').removesuffix('/__init__').replace('/', '.')}"
    parent, _, name = module.rpartition(".")
    imports = re.compile(rf"{re.escape(module)}\b|from {re.escape(parent)} import .*\b{re.escape(name)}\b")
    words = re.compile("|".join({*name.split("_"), mutant.function.rpartition(".")[2]}))
    texts = {
        path.relative_to(tree).as_posix(): path.read_text() for path in sorted((tree / "tests").rglob("test_*.py"))
    }
    naming = [file for file in texts if imports.search(texts[file]) and not file.startswith(FAR_TESTS)]
    naming.sort(key=lambda file: (-_nearness(file, mutant.file), len(texts[file])))
    folder = Path("tests", mutant.file).parent
    near = [file for file in texts if Path(file).parent == folder and file not in naming]
    others = [file for file in texts if file not in {*naming, *near} and not file.startswith(FAR_TESTS)]
    for files in (near, others):
        files.sort(key=lambda file: -len(words.findall(texts[file])) / len(texts[file]))
    chosen = [*naming[:2], *near[:3], *others[:2], *near[3:], *naming[2:], *others[2:]]
    return [chosen[:2], chosen[2:most_files]]


def attempt(tree: Path, covered: CoverageMap | int, mutant: Mutant) -> Outcome:
    """Put the mutant into the tree, run tests until one fails, and put the original back.

    Without a map there are so many test files of `neighbours`.
    """
    path = tree / "src/lbrx" / mutant.file
    original = path.read_text()
    started = time.monotonic()
    count = 0
    broken: list[str] = []  # tests that fail without the mutant, too
    if isinstance(covered, CoverageMap):
        groups = selected(covered, mutant, original)
    else:
        groups = neighbours(tree, mutant, covered)
    groups[0].insert(0, str(path.relative_to(tree)))  # its own examples
    for tests in filter(None, groups):
        count += len(tests)
        seconds = NEIGHBOUR_SECONDS
        if isinstance(covered, CoverageMap):
            seconds = 60 + 4 * sum(covered.seconds.get(test, 0.0) for test in tests)
        for _ in range(MOST_BROKEN):
            try:
                path.write_text(mutant.text)
                result, killer = _run(tree, tests, seconds, broken)
            finally:
                path.write_text(original)
            if result == "timeout" or (result == "killed" and _passes(tree, killer)):
                return Outcome(mutant, result, count, time.monotonic() - started, killer)
            if result == "survived":
                break
            broken.append(killer.partition(" ")[2])
    return Outcome(mutant, "survived", count, time.monotonic() - started)


def _passes(tree: Path, killer: str) -> bool:
    """Whether the test that failed passes without the mutant: else it shows nothing."""
    word, _, test = killer.partition(" ")
    if word not in ("FAILED", "ERROR"):
        return True  # pytest itself did not get through
    if test not in _passing and any(_run(tree, [test], NEIGHBOUR_SECONDS, ())[0] == "survived" for _ in range(2)):
        _passing.add(test)
    return test in _passing


def _run(tree: Path, tests: Sequence[str], most_seconds: float, broken: Sequence[str]) -> tuple[str, str]:
    with TemporaryDirectory() as scratch:
        listed = Path(scratch) / "tests"
        listed.write_text("\n".join([*tests, *(f"--deselect={test}" for test in broken)]))
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider"]
        command += ["--doctest-modules", f"--basetemp={scratch}/pytest", f"@{listed}"]
        process = subprocess.Popen(
            command,
            cwd=tree,
            env={**os.environ, "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}", "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output = _output_within(process, most_seconds)
        finally:
            _end(process)
    if output is None:
        return "timeout", ""
    if process.returncode in _PYTEST_FAILED or process.returncode < 0:
        failed = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
        return "killed", failed[0].split(" - ")[0] if failed else f"status {process.returncode}"
    return "survived", ""


def _output_within(process: subprocess.Popen[str], most_seconds: float) -> str | None:
    """What a test run prints, or None if it hangs, or takes too much processor time or memory.

    Processor time, not the clock: other work on the machine must not look like a hang.
    """
    started = time.monotonic()
    while True:
        try:
            return process.communicate(timeout=2)[0]
        except subprocess.TimeoutExpired:
            seconds, size = _use(process.pid)
            is_hanging = time.monotonic() - started > HANGING * most_seconds
            if is_hanging or seconds > most_seconds or size > MOST_BYTES:
                return None


def _use(pid: int) -> tuple[float, int]:
    """Processor seconds and resident bytes of a process and all that it started."""
    seconds, size = 0.0, 0
    try:
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            times = process.cpu_times()
            seconds += times.user + times.system + times.children_user + times.children_system
            size += process.memory_info().rss
    except psutil.NoSuchProcess:  # ended meanwhile: the next look has what is left
        pass
    return seconds, size


def _end(process: subprocess.Popen[str]) -> None:
    """End a test run with all processes that it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()
