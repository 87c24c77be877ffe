"""Candidates that are measured side by side."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import lbrx
from lbrx.demo.models import demo_models
from lbrx.errors import UsageError
from lbrx.jobs.search.local_runner import inputs_stay_mapped, local_runner
from lbrx.jobs.search.settings import Measurer, SearchSettings
from lbrx.memory.resident import resident_window

SHIPPED = demo_models()
RECIPE = (
    f"merge_method: linear\nmodels:\n  - {{model: {SHIPPED.prose}, parameters: {{weight: {{search: [0, 1]}}}}}}\n"
    f"  - {{model: {SHIPPED.code}, parameters: {{weight: 0.5}}}}\n"
)


class _Together:
    """Measures nothing: its candidates wait for each other, so that they must run side by side."""

    def __init__(self, at_once: int, candidate_bytes: int = 0, function: str | None = None) -> None:
        self.settings = SimpleNamespace(function=function)
        self.candidate_bytes = candidate_bytes
        self._barrier = threading.Barrier(at_once)

    def figures(self, recipe: str, share: float) -> Mapping[str, float]:
        self._barrier.wait(20)
        if recipe == "bad":
            raise UsageError("no such merge")
        return {recipe: share}


def ran(measurer: Any, recipes: list[str]) -> list[Mapping[str, float]]:
    with lbrx.using(threads=2):
        return list(local_runner(measurer)([(recipe, 0.5) for recipe in recipes]))


def test_as_many_as_threads_run_side_by_side_and_stay_in_order() -> None:
    assert ran(_Together(2), ["a", "b", "c", "d"]) == [{"a": 0.5}, {"b": 0.5}, {"c": 0.5}, {"d": 0.5}]


def test_an_error_is_raised_at_its_turn() -> None:
    measurer: Any = _Together(2)
    with lbrx.using(threads=2):
        results = iter(local_runner(measurer)([("a", 1.0), ("bad", 1.0)]))
        assert next(iter(results)) == {"a": 1.0}
        with pytest.raises(UsageError, match="no such merge"):
            next(iter(results))


@pytest.mark.parametrize("options", [{"candidate_bytes": 1 << 50}, {"function": "own.py:f"}])
def test_one_after_the_other_without_memory_or_with_a_function_of_the_user(options: dict[str, Any]) -> None:
    assert ran(_Together(1, **options), ["a", "b", "c"]) == [{"a": 0.5}, {"b": 0.5}, {"c": 0.5}]


def test_figures_and_memory_of_real_candidates() -> None:
    text = SHIPPED.prose_text.read_text(encoding="utf-8")[:1500]
    given = SearchSettings(recipe=RECIPE, source="recipe", directory=Path(), texts=(("prose", text),), context=64)
    recipes = [RECIPE.replace("{search: [0, 1]}", weight) for weight in ("0.2", "0.9", "0.4")]
    alone = Measurer(given)
    with lbrx.using(threads=1):
        expected = [alone.figures(recipe, 0.5) for recipe in recipes]
    measurer = Measurer(given)
    assert ran(measurer, recipes) == expected
    embedding = lbrx.open(SHIPPED.prose)["model.embed_tokens.weight"]
    assert measurer.candidate_bytes > embedding.nbytes
    before = resident_window.limit_bytes
    with inputs_stay_mapped(measurer):
        assert resident_window.limit_bytes >= 2 * measurer.inputs_bytes > embedding.nbytes
    assert resident_window.limit_bytes == before
