"""docs/models.md says what the records and the golden files say."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_is_current() -> None:
    made = runpy.run_path(str(ROOT / "docs/model_table.py"))["page"]()
    assert (ROOT / "docs/models.md").read_text(encoding="utf-8") == made, "run python docs/model_table.py"
