"""Recipes with settings that change nothing: mergekit ignores them, lbrx warns, and ``strict`` makes them errors."""

from __future__ import annotations

import pytest

from lbrx.errors import UsageError
from lbrx.jobs.merge.recipe import Recipe, parse_recipes
from lbrx.jobs.moe.recipe import parse_moe_recipe

LINEAR = "merge_method: linear\nmodels: [{model: a, parameters: {weight: 1}}]\n"
SLERP = "merge_method: slerp\nbase_model: a\nmodels: [{model: a}, {model: b}]\nparameters:\n  t: 0.5\n"
CASES = {
    "an anchor": (
        "scale: &scale 0.5\nmerge_method: linear\nmodels: [{model: a, parameters: {weight: *scale}}]\n",
        "recipe.yml:1: the key 'scale' of a recipe has no effect",
    ),
    "a parameter beside parameters": (
        LINEAR + "normalize: true\n",
        "recipe.yml:3: the key 'normalize' of a recipe has no effect; parameters belong in 'parameters'",
    ),
    "an author": (LINEAR + "author: someone\n", "recipe.yml:3: the key 'author' of a recipe has no effect"),
    "layers of a whole model": (
        "merge_method: linear\nmodels:\n  - model: a\n    parameters: {weight: 1}\n    layer_range: [0, 2]\n",
        "recipe.yml:5: the key 'layer_range' of an item of 'models' has no effect; parameters belong in 'parameters'",
    ),
    "an old parameter": (SLERP + "  embed_slerp: true\n", "recipe.yml:6: slerp has no parameter 'embed_slerp'"),
    "a parameter of another method": (SLERP + "  rescale: true\n", "recipe.yml:6: slerp has no parameter 'rescale'"),
    "an unheard-of parameter": (SLERP + "  flavour: 3\n", "recipe.yml:6: slerp has no parameter 'flavour'"),
    "a parameter of a method that takes none": (
        "merge_method: arcee_fusion\nbase_model: a\nmodels: [{model: a}, {model: b}]\nparameters: {weight: 0.5}\n",
        "recipe.yml:4: arcee_fusion has no parameter 'weight', so it has no effect",
    ),
    "a key that is given twice": (
        "merge_method: linear\nmodels: [{model: a}]\nparameters:\n  weight: 1\n  weight: 2\n",
        "recipe.yml:4: key 'weight' is given again on line 5, which counts",
    ),
    "a residual weight": (
        "merge_method: passthrough\nslices: [{sources: [{model: a, layer_range: [0, 2]}], residual_weight: 0.1}]\n",
        "recipe.yml:2: the key 'residual_weight' of an item of 'slices' has no effect",
    ),
}


def only(text: str) -> Recipe:
    (recipe,) = parse_recipes(text)
    return recipe


@pytest.mark.parametrize(("text", "warning"), CASES.values(), ids=CASES.keys())
def test_settings_without_effect_are_warnings_or_with_strict_errors(text: str, warning: str) -> None:
    (given,) = only(text).warnings
    assert given.startswith(warning)
    with pytest.raises(UsageError) as caught:
        parse_recipes(text, strict=True)
    assert str(caught.value) == f"{given}; without --strict this is a warning"


def test_a_recipe_without_such_settings_has_no_warnings() -> None:
    assert only(LINEAR).warnings == only(SLERP).warnings == ()
    assert parse_recipes(LINEAR, strict=True)


def test_of_two_values_the_last_one_counts() -> None:
    text = "merge_method: linear\nmodels: [{model: a}]\nparameters: {weight: 1, weight: 2}\n"
    assert only(text).parameters["weight"].constant == 2


def test_an_anchor_gives_its_value() -> None:
    (source,) = only(CASES["an anchor"][0]).modules["*"].slices[0].sources
    assert source.parameters["weight"].constant == 0.5


def test_a_slice_without_layers_chooses_the_model_of_the_tensors_after_the_layers() -> None:
    text = (
        "merge_method: passthrough\nslices:\n"
        "- sources: [{model: a, layer_range: [0, 2]}]\n"
        "- sources: [{model: b, layer_range: [2, 2]}]\n"
    )
    assert [part.layers for part in only(text).modules["*"].slices] == [2, 0]


def test_recipes_of_mixtures_ignore_the_same_keys() -> None:
    experts = "experts: [{source_model: a, colour: red}, {source_model: b}]"
    recipe = parse_moe_recipe(f"base_model: a\ngate_mode: random\n{experts}\nlicense: mit\n")
    assert sorted(recipe.warnings) == [
        "recipe.yml:3: the key 'colour' of an item of 'experts' has no effect",
        "recipe.yml:4: the key 'license' of the recipe has no effect",
    ]
