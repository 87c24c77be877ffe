"""References to models, as text and as mappings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbrx.jobs.merge.recipe import LoraRef, ModelRef, RecipeError, parse_reference
from lbrx.jobs.merge.recipe.reading import read_reference
from lbrx.jobs.merge.recipe.yaml_lines import parse_documents

PARTS = st.text(st.characters(exclude_characters="@+", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("models/a", ModelRef("models/a")),
        ("org/model@main", ModelRef("org/model", "main")),
        ("org/model+org/lora", ModelRef("org/model", None, LoraRef("org/lora"))),
        ("org/model@v1+org/lora@v2", ModelRef("org/model", "v1", LoraRef("org/lora", "v2"))),
        ("{model: org/model@v1}", ModelRef("org/model", "v1")),
        ("{model: {path: a+b@c}}", ModelRef("a+b@c")),
        ("{model: a+b}", ModelRef("a+b")),
        ("{model: a, lora: null}", ModelRef("a")),
        (
            "{model: {path: a, revision: r}, lora: {path: l, revision: s}, override_architecture: LlamaForCausalLM}",
            ModelRef("a", "r", LoraRef("l", "s"), "LlamaForCausalLM"),
        ),
    ],
)
def test_forms(text: str, expected: ModelRef) -> None:
    (node,) = parse_documents(text)
    assert read_reference(node, "'model'") == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{path: a}", "'model' has no 'model', which it needs"),
        ("{lora: a}", "'model' has no 'model', which it needs"),
        ("{model: {revision: a}}", "'model' has no 'path', which it needs"),
        ("{model: [a]}", "'model' must be text, found a list"),
        ("[a]", "'model' must be a model, as text or a mapping, found a list"),
        ("''", "'model' must be text, found an empty text"),
        ("+lora", "model '+lora' has an empty part; expected 'path[@revision][+lora[@revision]]'"),
    ],
)
def test_wrong_forms(text: str, problem: str) -> None:
    (node,) = parse_documents(text)
    with pytest.raises(RecipeError) as caught:
        read_reference(node, "'model'")
    assert caught.value.problem == problem


@given(PARTS, st.none() | PARTS, st.none() | st.builds(LoraRef, PARTS, st.none() | PARTS))
def test_text_round_trip(path: str, revision: str | None, lora: LoraRef | None) -> None:
    reference = ModelRef(path, revision, lora)
    assert parse_reference(str(reference)) == reference
