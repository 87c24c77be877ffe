"""A pytest plugin that records the processor time of each test, also of its processes, and the lines that it runs.

Tests that fail are left out. Lines of subprocesses and of compiled kernels do not count.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from mutants.instrument import Recording


class Recorder:
    """Writes JSON to ``path`` at the end: ``seconds`` of each test, and its ``lines`` by source."""

    def __init__(self, recording: Recording, path: Path) -> None:
        self._recording, self._path = recording, path
        self._seconds: dict[str, float] = {}
        self._lines: dict[str, dict[str, list[int]]] = {}
        self._failed: set[str] = set()
        self._shared: dict[str, list[dict[str, list[int]]]] = {}  # lines of wider fixtures, by test file

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._recording.clear()
        started = _processor_seconds()
        result = yield
        self._seconds[item.nodeid] = _processor_seconds() - started
        self._lines[item.nodeid] = self._recording.lines()
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
    ) -> Iterator[None]:
        result = yield
        if fixturedef.scope != "function":
            self._shared.setdefault(_file(request.node.nodeid), []).append(self._recording.lines())
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        seconds = {test: spent for test, spent in self._seconds.items() if test not in self._failed}
        lines = {test: _joined([self._lines[test], *self._shared.get(_file(test), [])]) for test in seconds}
        text = json.dumps({"seconds": seconds, "lines": lines, "failed": sorted(self._failed)})
        self._path.write_text(text)


def _processor_seconds() -> float:
    """Of this process and those that ended: other work on the machine does not count."""
    return sum(os.times()[:4])


def _file(test: str) -> str:
    return test.partition("::")[0]


def _joined(parts: Sequence[dict[str, list[int]]]) -> dict[str, list[int]]:
    return {file: sorted({line for part in parts for line in part.get(file, ())}) for part in parts for file in part}
