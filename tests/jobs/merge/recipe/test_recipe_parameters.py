"""Precedence, filters by input and output names, defaults, and warnings."""

from __future__ import annotations

import pytest

from lbrx.errors import UsageError
from lbrx.jobs.merge.methods import MethodSpec, is_custom_method, load_method, method_spec
from lbrx.jobs.merge.methods.parameters import REQUIRED, MethodParameter
from lbrx.jobs.merge.recipe import (
    Recipe,
    RecipeError,
    RecipeLine,
    base_index,
    check_method,
    parse_recipes,
    resolve,
    resolve_tensor,
)
from lbrx.registry import METHODS

LINEAR, TIES = load_method("linear").spec, load_method("ties").spec


def one(text: str) -> Recipe:
    (recipe,) = parse_recipes(text)
    return recipe


def weight(recipe: Recipe, tensor_name: str, *, module: str = "text", source: int = 0, t: float = 0.0) -> object:
    parameter = LINEAR.find("weight")
    assert parameter is not None
    return resolve(recipe, parameter, module=module, slice_index=0, source_index=source, tensor_name=tensor_name, t=t)


SCOPES = """\
merge_method: linear
parameters: {weight: [{filter: r, value: 4}, {value: 5}]}
modules:
  text:
    parameters: {weight: {filter: m, value: 3}}
    slices:
      - parameters: {weight: {filter: s, value: 2}}
        sources:
          - model: a
            layer_range: [0, 2]
            parameters: {weight: {filter: o, value: 1}}
          - model: b
            layer_range: [0, 2]
"""


@pytest.mark.parametrize(
    ("tensor_name", "expected"), [("osmr", 1), ("smr", 2), ("mr", 3), ("r", 4), ("", 5), ("xyz", 5)]
)
def test_nearest_scope_that_matches_counts(tensor_name: str, expected: float) -> None:
    assert weight(one(SCOPES), tensor_name) == expected


def test_other_sources_do_not_count() -> None:
    assert weight(one(SCOPES), "osmr", source=1) == 2


def test_shared_parameters_filter_on_the_output_name_and_others_on_the_input_name() -> None:
    recipe = one(
        """\
merge_method: ties
base_model: b
models: [{model: a}]
parameters:
  weight: [{filter: layers.7, value: 7}, {value: 1}]
  normalize: [{filter: layers.3, value: false}, {value: true}]
"""
    )
    found = resolve_tensor(
        recipe,
        TIES,
        module="default",
        slice_index=0,
        input_names=["layers.7.x", "layers.7.x"],
        output_name="layers.3.x",
        t=0.0,
    )
    assert found.across_models("weight") == (7,)
    assert found.shared["normalize"] is False
    assert found.per_model[1] is None


def test_defaults() -> None:
    recipe = one("{merge_method: della, base_model: b, models: [{model: a}], parameters: {weight: 1, density: 0.5}}")
    found = resolve_tensor(
        recipe,
        load_method("della").spec,
        module="default",
        slice_index=0,
        input_names=["x", "x"],
        output_name="x",
        t=0.0,
    )
    assert found.shared == {"normalize": True, "rescale": True, "lambda": 1.0, "int8_mask": False}
    of_model, of_base = found.per_model
    assert of_model is not None
    assert dict(of_model) == {"weight": 1, "density": 0.5, "epsilon": 0.15}
    assert of_base is None


def test_required_parameter_that_no_filter_gives() -> None:
    recipe = one("merge_method: linear\nmodels:\n  - model: a\n    parameters: {weight: {filter: mlp, value: 1}}\n")
    assert weight(recipe, "mlp.up") == 1
    with pytest.raises(RecipeError) as caught:
        weight(recipe, "norm")
    assert str(caught.value) == (
        "recipe.yml:3: no value of 'weight' applies to the tensor 'norm' of model 'a'; "
        "expected a filter that matches it, or a value without a filter"
    )


def test_weights_that_sum_to_zero_in_one_layer_only() -> None:
    recipe = one("{merge_method: linear, models: [{model: a, parameters: {weight: [1, -1]}}]}")

    def resolved(t: float) -> object:
        return resolve_tensor(
            recipe, LINEAR, module="default", slice_index=0, input_names=["x"], output_name="x", t=t
        ).across_models("weight")

    assert resolved(0.25) == (0.5,)
    with pytest.raises(RecipeError) as caught:
        resolved(0.5)
    assert str(caught.value) == (
        "recipe.yml:1: tensor 'x': the weights 0 sum to zero and cannot be normalized; "
        "expected another sum, or normalize: false"
    )


@pytest.mark.parametrize(
    "text",
    [
        "{merge_method: linear, models: [{model: a}, {model: b}], parameters: {weight: 0, normalize: false}}",
        "{merge_method: multislerp, models: [{model: a}], parameters: {weight: 0}}",
        "{merge_method: nuslerp, models: [{model: a}, {model: b}], parameters: {weight: 0}}",
        "{merge_method: task_arithmetic, base_model: b, models: [{model: a}], parameters: {weight: 0, normalize: yes}}",
        "{merge_method: della, base_model: b, models: [{model: a}], parameters: {weight: 1, density: 1, epsilon: 0.5}}",
        "{merge_method: linear, models: [{model: a}], parameters: {weight: 1.0e-12}}",
    ],
)
def test_recipes_that_only_look_wrong(text: str) -> None:
    assert one(text).warnings == ()


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (
            "merge_method: ties\nbase_model: b\nparameters: {weight: 1}\nmodels:\n  - model: a\n  - model: b\n"
            "    parameters: {density: 0.5}\n",
            "recipe.yml:7: 'density' has no effect on the base model of ties",
        ),
        (
            "merge_method: task_arithmetic\nbase_model: b\nmodels: [{model: a}]\nparameters:\n  weight: 1\n"
            "  density: 0.5\n",
            "recipe.yml:6: 'density' has no effect on task_arithmetic",
        ),
        (
            "merge_method: linear\nmodels: [{model: a}]\nparameters:\n  weight:\n    - value: 1\n    - filter: mlp\n"
            "      value: 2\n",
            "recipe.yml:7: this value of 'weight' is never used: one before it matches every tensor",
        ),
    ],
    ids=["base", "method", "filter"],
)
def test_warnings(text: str, warning: str) -> None:
    assert one(text).warnings == (warning,)


def test_base_index() -> None:
    recipe = one("{merge_method: karcher, base_model: b, models: [{model: a}]}")
    part = recipe.modules["*"].slices[0]
    assert base_index(recipe, load_method("karcher").spec, part) is None
    assert base_index(recipe, load_method("slerp").spec, part) == 1


def test_number_of_names_must_be_that_of_sources() -> None:
    recipe = one("{merge_method: linear, models: [{model: a}], parameters: {weight: 1}}")
    with pytest.raises(UsageError, match="2 input names for a slice of 1 sources"):
        resolve_tensor(recipe, LINEAR, module="default", slice_index=0, input_names=["x", "y"], output_name="x", t=0.0)


def test_custom_method_is_only_checked_once_it_is_known() -> None:
    text = "{merge_method: './mine.py:blend', models: [{model: a}], parameters: {swirl: half}}"
    assert is_custom_method("./mine.py:blend")
    recipe = one(text)
    spec = MethodSpec("blend", (MethodParameter("swirl", "float"),), needs_base="forbidden")
    with pytest.raises(RecipeError, match="'swirl' must be a number, found 'half'"):
        check_method(recipe, spec)
    with pytest.raises(RecipeError, match=r"recipe\.yml:1: 'swirl' must be a number"):
        parse_recipes(text, lookup=lambda _: spec)
    with pytest.raises(RecipeError, match="blend takes no 'base_model', found 'b'"):
        parse_recipes("{merge_method: blend, base_model: b, models: [{model: a}]}", lookup=lambda _: spec)


@pytest.mark.parametrize("name", ["mine.py", "mine.py:", ":blend", "mine:blend", "./mine.py:not a name"])
def test_names_that_are_not_custom_methods(name: str) -> None:
    assert not is_custom_method(name)
    with pytest.raises(UsageError, match="unknown merge method"):
        method_spec(name)


def test_number_of_models_of_a_custom_method() -> None:
    spec = MethodSpec("blend", model_count=(2, 3))
    text = "{merge_method: blend, models: [{model: a}]}"
    with pytest.raises(RecipeError, match="blend takes 2 to 3 models, found 1"):
        parse_recipes(text, lookup=lambda _: spec)


def test_parameter_ranges() -> None:
    here = RecipeLine("recipe.yml", 1)
    with pytest.raises(RecipeError, match="'x' must be at most 1, found 2"):
        MethodParameter("x", "float", maximum=1).read(2, here)
    with pytest.raises(RecipeError, match="'x' must be at least 0, found -1"):
        MethodParameter("x", "float", minimum=0).read(-1, here)
    with pytest.raises(UsageError, match="parameter 'x' is a whole number; expected gradient=False"):
        MethodParameter("x", "int")


FAMILY_DEFAULTS = {
    "task_arithmetic": (False, False),
    "ties": (True, False),
    "dare_linear": (False, True),
    "dare_ties": (False, True),
    "breadcrumbs": (False, False),
    "breadcrumbs_ties": (False, False),
    "della": (True, True),
    "della_linear": (False, True),
}


@pytest.mark.parametrize(("name", "defaults"), FAMILY_DEFAULTS.items())
def test_task_vector_family(name: str, defaults: tuple[bool, bool]) -> None:
    spec = load_method(name).spec
    found = {parameter.name: parameter.default for parameter in spec.parameters}
    assert (found["normalize"], found["rescale"]) == defaults
    assert found["weight"] is REQUIRED
    assert ("gamma" in found, "epsilon" in found) == ("breadcrumbs" in name, "della" in name)
    assert (spec.needs_base, spec.model_count) == ("required", (1, None))


def test_every_method_is_described() -> None:
    assert sorted(METHODS) == sorted(
        [
            *FAMILY_DEFAULTS,
            *("linear", "passthrough", "slerp", "nuslerp", "multislerp", "karcher", "model_stock"),
            *("nearswap", "arcee_fusion", "sce", "ram", "ramplus_tl"),
            *("checkpoint_average", "consensus_ta", "iso_c", "tsv_m", "wudi", "regmean"),
        ]
    )
