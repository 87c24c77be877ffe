"""Recipes with ranges: reading them, filling in values, and what is refused."""

from __future__ import annotations

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lbrx.jobs.merge.recipe import parse_recipes
from lbrx.jobs.merge.recipe.yaml_lines import RecipeError
from lbrx.jobs.search.genome import recipe_of_genome
from lbrx.jobs.search.space import Dimension, read_space

RECIPE = """
merge_method: {choose: [ties, task_arithmetic]}
base_model: base
models:
  - model: out/prose
    parameters:
      weight:
        - filter: mlp
          value: {search: [0, 1]}
        - value: {search: [0.5, 2], points: 3}
      density: 0.5
  - model: code
    parameters: {weight: {search: [0.001, 1], log: true}}
"""


def test_dimensions_are_named_after_models_filters_and_points() -> None:
    names = [dimension.name for dimension in read_space(RECIPE).dimensions]
    assert names == [
        "merge_method",
        "prose.weight.mlp",
        *(f"prose.weight.1[{point}]" for point in range(3)),
        "code.weight",
    ]


def test_values_are_filled_in_and_the_rest_stays() -> None:
    space = read_space(RECIPE)
    text = space.recipe([1, 0.25, 0.5, 1.0, 2.0, 0.1])
    (recipe,) = parse_recipes(text)
    assert recipe.method == "task_arithmetic"
    plain = yaml.safe_load(text)
    prose, code = plain["models"]
    assert prose["parameters"] == {
        "weight": [{"filter": "mlp", "value": 0.25}, {"value": [0.5, 1.0, 2.0]}],
        "density": 0.5,
    }
    assert code == {"model": "code", "parameters": {"weight": 0.1}}
    assert plain["base_model"] == "base"


def test_choices_of_whole_parts_and_of_ranges_within() -> None:
    text = (
        "merge_method: passthrough\nslices: {choose: [[{sources: [{model: a, layer_range: [0, 2]}]}], [{sources: []}]]}"
    )
    space = read_space(text)
    assert yaml.safe_load(space.recipe([0]))["slices"] == [{"sources": [{"model": "a", "layer_range": [0, 2]}]}]
    assert yaml.safe_load(space.recipe([1]))["slices"] == [{"sources": []}]
    nested = read_space("x: {choose: [{search: [0, 1]}, 7]}")
    assert [yaml.safe_load(nested.recipe(values))["x"] for values in ([0, 0.5], [1, 0.5])] == [0.5, 7]


@given(st.floats(0, 1), st.sampled_from([(0.0, 1.0, False), (-1.0, 3.0, False), (0.001, 10.0, True)]))
def test_shares_and_values_are_inverse(share: float, ends: tuple[float, float, bool]) -> None:
    dimension = Dimension("x", ends[0], ends[1], is_log=ends[2])
    value = dimension.at(share)
    assert dimension.low <= value <= dimension.high
    assert dimension.at(dimension.share(value)) == pytest.approx(value, abs=2e-5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x: {search: [1, 0]}", "'search' needs two numbers, the smaller one first"),
        ("x: {search: [0, .nan]}", "'search' needs two numbers"),
        ("x: {search: 1}", "'search' needs two numbers"),
        ("x: {search: [0, 1], pionts: 3}", "unknown key 'pionts' next to 'search'; expected points or log"),
        ("x: {search: [0, 1], points: 1}", "'points' is 1; expected a whole number from 2 to 64"),
        ("x: {search: [0, 1], log: true}", "a logarithmic range begins above 0"),
        ("x: {choose: []}", "'choose' needs a list of values"),
        ("x: {choose: [1], y: 2}", "'choose' needs a list of values and no other keys"),
        (f"x: [{', '.join(['{search: [0, 1], points: 64}'] * 9)}]", "more than 512 values are searched"),
    ],
)
def test_wrong_ranges_are_reported_with_their_line(text: str, message: str) -> None:
    with pytest.raises(RecipeError, match="search.yml:1: .*" + message.replace("[", r"\[")):
        read_space(text, "search.yml")


def test_a_genome_has_a_point_for_each_group_of_layers() -> None:
    genome = """
genome:
  models: [a, b]
  merge_method: dare_ties
  base_model: base
  layer_granularity: 8
  allow_negative_weights: true
  normalize: true
  filters: [self_attn]
tasks: [{name: x}]
"""
    recipe = json.loads(recipe_of_genome(genome, "genome.yml", lambda model: {"a": 24}[model]))
    assert recipe["merge_method"] == "dare_ties"
    assert recipe["base_model"] == "base"
    assert recipe["parameters"] == {"normalize": True}
    first = recipe["models"][0]["parameters"]
    weight = {"search": [-1.0, 1.0], "points": 3}
    assert first["weight"] == [{"filter": "self_attn", "value": weight}, {"value": weight}]
    assert len(read_space(json.dumps(recipe)).dimensions) == 2 * 2 * 2 * 3
    with pytest.raises(RecipeError, match="the method 'karcher' cannot be evolved"):
        recipe_of_genome("genome: {models: [a], merge_method: karcher}", "genome.yml", len)
    assert recipe_of_genome(RECIPE, "recipe.yml", len) == RECIPE


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("tokenizer_source: a", "genome.yml:1: 'tokenizer_source' of a genome is not supported; expected allow_neg"),
        ("smooth: false", "'smooth' of a genome is not supported"),
        ("filters: self_attn", "'filters' is 'self_attn'; expected a list of texts"),
        ("models: [{model: a}]", "the genome has no list of models"),
    ],
)
def test_keys_of_a_genome_that_would_change_nothing_are_reported(key: str, message: str) -> None:
    given = key if key.startswith("models") else f"models: [a], {key}"
    with pytest.raises(RecipeError, match=message):
        recipe_of_genome(f"genome: {{merge_method: linear, {given}}}", "genome.yml", len)
