"""Searches on a cluster find what one machine finds, to the last digit."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

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


def test_scores_are_those_of_one_machine_also_after_a_kill(ray_cluster: Any, tmp_path: Path) -> None:
    text, recipe = tmp_path / "prose.txt", tmp_path / "recipe.yml"
    text.write_text(SHIPPED.prose_text.read_text(encoding="utf-8")[:3000], encoding="utf-8")
    recipe.write_text(RECIPE, encoding="utf-8")
    settings: dict[str, Any] = {"texts": [text], "candidates": 7, "context": 64, "max_tokens": 126}
    alone = search(recipe, tmp_path / "alone", **settings)
    command = [sys.executable, "-m", "lbrx", "search", recipe, tmp_path / "together", "--text", text]
    command += ["--candidates", "7", "--context", "64", "--max-tokens", "126", "--cluster", ray_cluster.address]
    journal = tmp_path / "together" / "search.jsonl"
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and (not journal.exists() or journal.read_bytes().count(b"\n") < 3):
            time.sleep(0.01)
        assert process.poll() is None
        process.kill()
    assert [path.name for path in (tmp_path / "together").iterdir()] == ["search.jsonl"]
    together = search(recipe, tmp_path / "together", cluster="auto", **settings)
    assert together.recipe == alone.recipe
    assert journal.read_bytes() == (tmp_path / "alone" / "search.jsonl").read_bytes()
