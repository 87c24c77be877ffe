"""Searches on a cluster find what one machine finds, to the last digit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lbrx.demo.models import demo_models
from lbrx.jobs.search.search import search

SHIPPED = demo_models()
RECIPE = f"""
merge_method: task_arithmetic
base_model: {SHIPPED.base}
models:
  - {{model: {SHIPPED.prose}, parameters: {{weight: {{search: [0, 1]}}}}}}
  - {{model: {SHIPPED.code}, parameters: {{weight: {{search: [0, 1]}}}}}}
"""


@pytest.mark.usefixtures("ray_cluster")
def test_scores_are_those_of_one_machine(tmp_path: Path) -> None:
    text = tmp_path / "prose.txt"
    text.write_text(SHIPPED.prose_text.read_text(encoding="utf-8")[:3000], encoding="utf-8")
    settings: dict[str, Any] = {"texts": [text], "candidates": 7, "context": 64, "max_tokens": 126}
    alone = search(RECIPE, tmp_path / "alone", **settings)
    together = search(RECIPE, tmp_path / "together", cluster="auto", **settings)
    assert together.recipe == alone.recipe
    journals = [(tmp_path / name / "search.jsonl").read_bytes() for name in ("alone", "together")]
    assert journals[0] == journals[1]
