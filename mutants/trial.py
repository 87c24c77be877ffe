"""Trying a mutant: the tests that execute its lines run in a copy of the tree that has the changed source."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from mutants.coverage_map import CoverageMap, line_keys
from mutants.running import WarmTests, run_cold
from mutants.sample import Mutant

FIRST_TESTS, FIRST_SECONDS = 60, 10.0  # of a quick selection, which kills most
ALL_SECONDS = 60.0  # of all tests that are run for a mutant
LEAST_TESTS = 8  # with fewer, the tests of the folder that mirrors the source are run as well
LEAST_SECONDS, FOLDER_SECONDS = 30.0, 100.0  # of processor time, for any tests, and for those that are not measured
MOST_BROKEN = 3  # tests in a group that fail without the mutant, too
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
    compiling = ["-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "src"]  # a mutant may have any time
    subprocess.run([sys.executable, *compiling], cwd=target, check=True)
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
    by_cost = sorted(quick, key=lambda test: (covered.seconds[test], test))
    return [by_cost, rest, [folder] if len(tests) < LEAST_TESTS else []]


def _nearness(test_file: str, source: str) -> int:
    """How many leading parts of their paths are equal: tests mirror sources."""
    pairs = zip(Path(test_file).parts[1:], Path(source).parts, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


class Trial:
    """Tries mutants in a copy of the tree."""

    def __init__(self, tree: Path, covered: CoverageMap, test_files: Sequence[str]) -> None:
        self._tree, self._covered = tree, covered
        self._warm = WarmTests(tree, test_files)
        self._passing: set[str] = set()  # tests that were seen to pass without a mutant

    def attempt(self, mutant: Mutant) -> Outcome:
        """Put the mutant into the tree, run tests until one fails, and put the original back.

        What survives in a warm process is tried in a new one: only there is a module imported with the mutant.
        """
        self._warm.start()
        path = self._tree / "src/lbrx" / mutant.file
        original = path.read_text()
        started = time.monotonic()
        quick, rest, folder = selected(self._covered, mutant, original)
        own = path.relative_to(self._tree).as_posix()  # its examples
        count = 0
        for tests, is_warm in (([own, *quick], True), (rest, True), ([own, *folder, *quick], False)):
            count += len(tests) if is_warm else len(folder)
            change = (str(path), original, mutant.text) if is_warm else None
            result, killer = self._first_failure(tests, path, original, mutant.text, change)
            if result != "survived":
                return Outcome(mutant, result, count, time.monotonic() - started, killer)
        return Outcome(mutant, "survived", count, time.monotonic() - started)

    def close(self) -> None:
        self._warm.close()

    def _first_failure(
        self, tests: Sequence[str], path: Path, original: str, changed: str, change: tuple[str, str, str] | None
    ) -> tuple[str, str]:
        """How tests end with a mutant, and the one that fails; those that fail without it as well do not count."""
        seconds = LEAST_SECONDS + 4 * sum(self._covered.seconds.get(test, FOLDER_SECONDS) for test in tests)
        broken: list[str] = []
        for _ in range(MOST_BROKEN if tests else 0):
            try:
                path.write_text(changed)
                result, killer = self._run([*tests, *(f"--deselect={test}" for test in broken)], seconds, change)
            finally:
                path.write_text(original)
            if result != "killed" or self._passes(killer, change is not None):
                return result, killer
            broken.append(killer.partition(" ")[2])
        return "survived", ""

    def _passes(self, killer: str, is_warm: bool) -> bool:
        """Whether the test that failed passes without the mutant: else it shows nothing."""
        word, _, test = killer.partition(" ")
        if word not in ("FAILED", "ERROR"):
            return True  # pytest itself did not get through
        unchanged = ("", "", "") if is_warm else None
        if test not in self._passing and any(
            self._run([test], LEAST_SECONDS + FOLDER_SECONDS, unchanged)[0] == "survived" for _ in range(2)
        ):
            self._passing.add(test)
        return test in self._passing

    def _run(
        self, arguments: Sequence[str], most_seconds: float, change: tuple[str, str, str] | None
    ) -> tuple[str, str]:
        """The result of tests, and the one that failed: in a warm process if there is a change for it."""
        if change is None:
            status, output = run_cold(self._tree, ["-x", *arguments], most_seconds)
        else:
            status, output = self._warm.run(["-x", *arguments], most_seconds, change if change[0] else None)
        if status is None:
            return "timeout", ""
        if status in _PYTEST_FAILED or status < 0:
            failed = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
            return "killed", failed[0].split(" - ")[0] if failed else f"status {status}"
        return "survived", ""
