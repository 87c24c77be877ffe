"""Files with several recipes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbrx.jobs.merge.recipe import parse_recipes

FINAL_FIRST = """\
merge_method: slerp
base_model: left
models: [{model: right+adapter}]
parameters: {t: 0.5}
tokenizer_source: left
---
name: right
merge_method: passthrough
slices: [{sources: [{model: left, layer_range: [0, 2]}]}]
---
name: left
merge_method: passthrough
models: [{model: models/a}]
"""


def test_order_follows_use() -> None:
    recipes = parse_recipes(FINAL_FIRST)
    assert [(recipe.name, recipe.uses) for recipe in recipes] == [
        ("left", ()),
        ("right", ("left",)),
        (None, ("right", "left")),
    ]


def test_independent_stages_keep_the_order_of_the_file() -> None:
    text = "\n---\n".join(f"{{name: {n}, merge_method: passthrough, models: [{{model: models/a}}]}}" for n in "cab")
    assert [recipe.name for recipe in parse_recipes(text)] == ["c", "a", "b"]


def test_bare_name_of_a_directory_is_not_a_misspelt_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fisrt").mkdir()
    monkeypatch.chdir(tmp_path)
    text = """\
{name: first, merge_method: passthrough, models: [{model: models/a}]}
---
{merge_method: passthrough, models: [{model: fisrt}]}
"""
    assert parse_recipes(text)[1].uses == ()


@given(st.permutations(range(5)), st.data())
def test_any_order_of_a_graph_without_cycles_is_sorted(order: list[int], data: st.DataObject) -> None:
    """Stage i may use any stage below i; however the file is shuffled, uses come first."""
    documents = {}
    for stage in range(5):
        used = data.draw(st.lists(st.integers(0, stage - 1), unique=True)) if stage else []
        models = [f"{{model: stage-{other}}}" for other in used] + ["{model: models/a}"]
        documents[stage] = f"{{name: stage-{stage}, merge_method: karcher, models: [{', '.join(models)}]}}"
    recipes = parse_recipes("\n---\n".join(documents[stage] for stage in order))
    done: set[str | None] = set()
    for recipe in recipes:
        assert done.issuperset(recipe.uses)
        done.add(recipe.name)
    assert len(done) == 5


@pytest.mark.parametrize("model", ["./fisrt", "models/first", "~/firs"])
def test_a_path_near_the_name_of_a_stage_is_a_path(model: str) -> None:
    text = f"""\
{{name: first, merge_method: passthrough, models: [{{model: models/a}}]}}
---
{{merge_method: passthrough, models: [{{model: {model}}}]}}
"""
    assert parse_recipes(text)[1].uses == ()
