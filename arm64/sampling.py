"""A pytest plugin that runs some parameter sets of each test: ``-p arm64.sampling --cases 3``; 0 runs all of them."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cases", type=int, default=0, help="parameter sets of each test; 0: all")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept = set(chosen([item.nodeid for item in items], config.getoption("--cases")))
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in kept])
    items[:] = [item for item in items if item.nodeid in kept]


def chosen(names: Sequence[str], count: int) -> list[str]:
    """So many names of each test, in their order; which ones depends on the names alone.

    >>> names = [f"a.py::test_it[{number}]" for number in range(10)] + ["a.py::test_other"]
    >>> len(chosen(names, 3)), len(chosen(names, 0)), chosen(names, 3)[-1]
    (4, 11, 'a.py::test_other')
    """
    tests: dict[str, list[str]] = defaultdict(list)
    for name in names:
        tests[name.partition("[")[0]].append(name)
    kept = set()
    for group in tests.values():
        group.sort(key=lambda name: hashlib.sha256(name.encode()).digest())
        kept.update(group[: count or None])
    return [name for name in names if name in kept]
