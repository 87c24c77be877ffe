"""A pytest plugin that records which tests execute which lines: ``pytest -p mutants.recorder``.

The environment names the sources (``MUTANTS_SOURCE``) and the file for the result (``MUTANTS_RECORD``): JSON with the
processor seconds of each test, also those of its processes, and the lines that it executes, by source. Lines of
subprocesses and of compiled kernels do not count.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

_SOURCE = Path(os.environ["MUTANTS_SOURCE"])
_measured = coverage.Coverage(data_file=None, source=[str(_SOURCE)], config_file=False)
_seconds: dict[str, float] = {}


def _processor_seconds() -> float:
    """Of this process and those that ended: other work on the machine does not count."""
    return sum(os.times()[:4])


def pytest_sessionstart() -> None:
    _measured.start()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _measured.switch_context(item.nodeid)
    started = _processor_seconds()
    result = yield
    _seconds[item.nodeid] = _processor_seconds() - started
    return result


def pytest_sessionfinish() -> None:
    _measured.stop()
    data = _measured.get_data()
    lines: dict[str, dict[str, list[int]]] = {test: {} for test in _seconds}
    for file in data.measured_files():
        source = Path(file).relative_to(_SOURCE).as_posix()
        for line, tests in data.contexts_by_lineno(file).items():
            for test in filter(None, tests):
                lines[test].setdefault(source, []).append(line)
    Path(os.environ["MUTANTS_RECORD"]).write_text(json.dumps({"seconds": _seconds, "lines": lines}))
