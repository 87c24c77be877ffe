"""Recipes to normal form."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lbrx.jobs.merge.recipe import (
    EVERY_MODULE,
    FrozenMap,
    ModelRef,
    ModelToken,
    Recipe,
    RecipeError,
    TokenizerSpec,
    TokenSpec,
    ZeroToken,
    parse_recipes,
)
from lbrx.tensors.dtype import dtype


def one(text: str) -> Recipe:
    (recipe,) = parse_recipes(text)
    return recipe


def names(recipe: Recipe, module: str = EVERY_MODULE) -> list[list[str]]:
    return [[str(source.model) for source in part.sources] for part in recipe.modules[module].slices]


def test_models_become_one_slice_with_the_base_behind_them() -> None:
    recipe = one("{merge_method: ties, base_model: b, models: [{model: a}, {model: c}], parameters: {weight: 1}}")
    assert names(recipe) == [["a", "c", "b"]]
    assert recipe.whole_model
    assert [source.layer_range for source in recipe.modules["*"].slices[0].sources] == [None, None, None]


def test_listed_base_keeps_its_place() -> None:
    recipe = one("{merge_method: slerp, base_model: a, parameters: {t: 1}, models: [{model: a}, {model: b}]}")
    assert names(recipe) == [["a", "b"]]


def test_slices_add_no_base() -> None:
    recipe = one(
        """\
merge_method: passthrough
base_model: c
slices:
  - sources: [{model: a, layer_range: [0, 2]}]
  - sources: [{model: b, layer_range: [4, 9]}]
"""
    )
    assert names(recipe) == [["a"], ["b"]]
    assert [part.layers for part in recipe.modules["*"].slices] == [2, 5]
    assert not recipe.whole_model
    assert [str(model) for model in recipe.models] == ["a", "b", "c"]
    assert str(recipe.donor) == "c"


def test_slice_overrides_the_base() -> None:
    recipe = one(
        """\
merge_method: slerp
base_model: a
parameters: {t: 0.5}
slices:
  - sources: [{model: a, layer_range: [0, 2]}, {model: b, layer_range: [0, 2]}]
  - base_model: c
    sources: [{model: b, layer_range: [2, 4]}, {model: c, layer_range: [3, 5]}]
"""
    )
    first, second = recipe.modules["*"].slices
    assert (recipe.base_of(first), recipe.base_of(second)) == (ModelRef("a"), ModelRef("c"))
    assert [str(model) for model in recipe.models] == ["a", "b", "c"]


def test_modules() -> None:
    recipe = one(
        """\
merge_method: linear
base_model: c
parameters: {weight: 1}
modules:
  text_decoder:
    slices: [{sources: [{model: a, layer_range: [0, 2]}]}]
  vision_tower:
    models: [{model: b}]
    parameters: {weight: 2}
"""
    )
    assert names(recipe, "text_decoder") == [["a"]]
    assert names(recipe, "vision_tower") == [["b", "c"]]
    assert recipe.module("vision_tower").parameters["weight"].constant == 2
    assert not recipe.whole_model
    with pytest.raises(RecipeError, match="the recipe has no module 'audio'; it has text_decoder, vision_tower"):
        recipe.module("audio")


def test_first_model_is_the_donor_without_a_base() -> None:
    assert str(one("{merge_method: karcher, models: [{model: z}, {model: a}]}").donor) == "z"


@pytest.mark.parametrize(
    ("text", "name"),
    [("float32", "f32"), ("torch.bfloat16", "bf16"), ("bf16", "bf16"), ("half", "f16"), ("float64", "f64")],
)
def test_dtypes(text: str, name: str) -> None:
    recipe = one(f"{{merge_method: passthrough, models: [{{model: a}}], dtype: {text}}}")
    assert recipe.dtype is dtype(name)
    assert recipe.output_dtype is dtype(name)


def test_out_dtype_wins() -> None:
    recipe = one("{merge_method: passthrough, models: [{model: a}], dtype: float32, out_dtype: float16}")
    assert recipe.output_dtype is dtype("f16")


def test_null_keys_are_absent_ones() -> None:
    recipe = one(
        """\
merge_method: passthrough
models:
  - model: a
    parameters:
slices: null
base_model: ~
dtype:
tokenizer_source:
chat_template:
parameters:
"""
    )
    assert recipe == one("{merge_method: passthrough, models: [{model: a}]}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tokenizer_source: union", TokenizerSpec("union")),
        ("tokenizer_source: base", TokenizerSpec("base")),
        ("tokenizer_source: org/other@v1", TokenizerSpec(ModelRef("org/other", "v1"))),
        ("tokenizer: {}", TokenizerSpec("union")),
        ("tokenizer: {source: {model: a}, pad_to_multiple_of: 64}", TokenizerSpec(ModelRef("a"), FrozenMap(), 64)),
    ],
)
def test_tokenizers(text: str, expected: TokenizerSpec) -> None:
    recipe = one(f"merge_method: passthrough\nmodels: [{{model: a}}]\n{text}\n")
    assert recipe.tokenizer == expected


def test_tokens() -> None:
    recipe = one(
        """\
merge_method: linear
models: [{model: a}, {model: b+lora}]
parameters: {weight: 1}
tokenizer:
  source: base
  tokens:
    <|im_start|>: {source: b+lora}
    <|im_end|>: {source: {kind: model_token, model: a, token: </s>}, force: true}
    <pad>: {source: {kind: model_token, model: a, token_id: 0}}
    <unk>: {source: {kind: zero}}
    <x>: {}
"""
    )
    assert recipe.tokenizer is not None
    a, b = recipe.models
    assert recipe.tokenizer.tokens == {
        "<|im_start|>": TokenSpec(b),
        "<|im_end|>": TokenSpec(ModelToken(a, token="</s>"), force=True),
        "<pad>": TokenSpec(ModelToken(a, token_id=0)),
        "<unk>": TokenSpec(ZeroToken()),
        "<x>": TokenSpec(),
    }
    assert list(recipe.tokenizer.models()) == [b, a, a]


@pytest.mark.parametrize("template", ["auto", "chatml", "{% for m in messages %}{{ m.content }}{% endfor %}"])
def test_chat_templates(template: str) -> None:
    recipe = one(f"merge_method: passthrough\nmodels: [{{model: a}}]\nchat_template: '{template}'\n")
    assert recipe.chat_template == template


def test_recipe_is_hashable_immutable_and_survives_pickling() -> None:
    recipe = one("{merge_method: linear, models: [{model: a, parameters: {weight: [0, 1]}}], dtype: bf16}")
    copy = pickle.loads(pickle.dumps(recipe))
    assert copy == recipe
    assert hash(copy) == hash(recipe)
    assert copy.location == recipe.location
    with pytest.raises(AttributeError, match="a FrozenMap cannot be changed"):
        recipe.modules._items = {}


SETTINGS = st.recursive(
    st.floats(-10, 10) | st.integers(-10, 10),
    lambda scalars: st.lists(scalars, min_size=1, max_size=4),
    max_leaves=4,
).filter(lambda setting: not isinstance(setting, list) or all(not isinstance(item, list) for item in setting))
FILTERED = SETTINGS | st.lists(
    st.fixed_dictionaries({"value": SETTINGS}, optional={"filter": st.sampled_from(["mlp", "attn", "*"])}),
    min_size=1,
    max_size=3,
)


def written(setting: Any) -> list[tuple[str | None, tuple[Any, ...]]]:
    """What a setting says, as branches of filter and points."""
    if isinstance(setting, list) and isinstance(setting[0], dict):
        return [(item.get("filter"), written(item["value"])[0][1]) for item in setting]
    return [(None, tuple(setting) if isinstance(setting, list) else (setting,))]


@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), FILTERED), min_size=1, max_size=4, unique_by=lambda pair: pair[0]),
    st.booleans(),
)
def test_what_is_written_is_what_is_read(models: list[tuple[str, Any]], flow: bool) -> None:
    document = {
        "merge_method": "linear",
        "models": [{"model": f"models/{name}", "parameters": {"weight": setting}} for name, setting in models],
        "parameters": {"normalize": False},
    }
    recipe = one(yaml.safe_dump(document, default_flow_style=flow))
    sources = recipe.modules["*"].slices[0].sources
    assert [source.model.path for source in sources] == [f"models/{name}" for name, _ in models]
    for source, (_, setting) in zip(sources, models, strict=True):
        branches = source.parameters["weight"].branches
        assert [(branch.filter, branch.points) for branch in branches] == written(setting)
