"""The page of requirements: every row names code that exists and a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs/brief.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| requirement")
]


def test_every_requirement_is_listed_once() -> None:
    assert len(ROWS) > 50
    assert len({row[0] for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:60])
def test_code_and_test_exist(row: list[str]) -> None:
    _, code, test, state = row
    paths = [path for path in re.findall(r"`([^`]+)`", code) if path.endswith((".py", "/"))]
    assert paths
    assert [path for path in paths if not any((ROOT / base / path).exists() for base in ("src/lbrx", ""))] == []
    match = re.fullmatch(r"`(tests/[\w/]+\.py)::(?:(Test\w+)::)?(test_\w+)`", test)
    assert match is not None
    source = (ROOT / match[1]).read_text(encoding="utf-8")
    inside = source if match[2] is None else source.partition(f"\nclass {match[2]}")[2]
    assert re.search(rf"^{'' if match[2] is None else '    '}def {match[3]}\(", inside, re.MULTILINE)
    assert state.startswith(("works", "partly: ", "Mac: "))


def test_the_tests_of_the_review_exist() -> None:
    text = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", text)
    assert len(named) == 36
    assert [name for file, name in named if f"def {name}(" not in (ROOT / "tests" / file).read_text("utf-8")] == []
