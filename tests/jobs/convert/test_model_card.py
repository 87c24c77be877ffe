"""Model cards that cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbrx.jobs.convert.model_card import card_metadata


@pytest.mark.parametrize("line", ["date: 2024-13-45", "x: " + "[" * 3000, "x: [", "license: [1"])
def test_a_card_that_is_not_yaml_says_nothing(line: str, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(f"---\nlicense: mit\n{line}\n---\n")
    assert card_metadata(tmp_path) == {}
