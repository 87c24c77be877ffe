"""Recipes of mixtures: what is read, and what is wrong with a line of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbrx.errors import FileError
from lbrx.jobs.merge.recipe import RecipeError, parse_reference
from lbrx.jobs.moe import load_moe_recipe, parse_moe_recipe
from lbrx.jobs.moe.layouts import choose_layout
from lbrx.tensors.dtype import dtype

RECIPE = """\
base_model: models/base
gate_mode: cheap_embed
dtype: bfloat16
experts_per_token: 1
architecture: qwen
experts:
  - source_model: models/a
    positive_prompts: [sum, "two sums"]
    negative_prompts: [poem]
    noise_scale: 1e-2
  - source_model: models/b
    positive_prompts: [poem]
shared_experts:
  - source_model: models/c
    positive_prompts: [of]
    residual_scale: 0.1
"""


def test_everything_that_a_recipe_can_say(tmp_path: Path) -> None:
    path = tmp_path / "moe.yml"
    path.write_text(RECIPE)
    recipe, text = load_moe_recipe(path)
    assert text == RECIPE
    assert recipe.base_model == parse_reference("models/base")
    assert (recipe.gate_mode, recipe.experts_per_token, recipe.architecture) == ("cheap_embed", 1, "qwen")
    assert recipe.dtype is dtype("bf16")
    first, second = recipe.experts
    assert (first.positive_prompts, first.negative_prompts) == (("sum", "two sums"), ("poem",))
    assert (first.noise_scale, first.residual_scale) == (0.01, 1.0)
    assert second.negative_prompts == ()
    assert recipe.shared_experts[0].residual_scale == 0.1
    assert [str(model) for model in recipe.models] == ["models/base", "models/a", "models/b", "models/c"]


def test_the_defaults() -> None:
    recipe = parse_moe_recipe(
        "{base_model: a, experts: [{source_model: a, positive_prompts: [x]}, {source_model: b, positive_prompts: [y]}]}"
    )
    assert (recipe.gate_mode, recipe.experts_per_token, recipe.dtype, recipe.architecture) == ("hidden", 2, None, None)
    assert recipe.shared_experts == ()


@pytest.mark.parametrize(
    ("old", "new", "line", "problem"),
    [
        ("gate_mode:", "gate_mod:", 2, "unknown key 'gate_mod'; did you mean 'gate_mode'?"),
        ("cheap_embed", "cheap_embeds", 2, "unknown gate mode 'cheap_embeds'; did you mean 'cheap_embed'?"),
        ("bfloat16", "int8", 3, "'dtype' is 'int8'; expected a floating type such as float32 or bfloat16"),
        ("token: 1", "token: 0", 4, "'experts_per_token' must be at least 1, found 0"),
        ("token: 1", "token: 3", 4, "'experts_per_token' is 3, but there are 2 experts; expected at least as many"),
        ("models/a", "a+b+", 7, "model 'a+b+' has an empty part; expected 'path[@revision][+lora[@revision]]'"),
        ("noise_scale: 1e-2", "noise_scal: 1", 10, "unknown key 'noise_scal'; did you mean 'noise_scale'?"),
        ("noise_scale: 1e-2", "noise_scale: loud", 10, "'noise_scale' must be a number, found 'loud'"),
        ("noise_scale: 1e-2", "noise_scale: [1]", 10, "'noise_scale' must be a number, found a list"),
        ("[poem]\nshared", "poem\nshared", 12, "'positive_prompts' must be a list, found the text 'poem'"),
        ("[poem]\nshared", "[7]\nshared", 12, "an item of 'positive_prompts' must be text, found the number 7; quote"),
        ("- source_model: models/b\n    ", "- ", 11, "an item of 'experts' has no 'source_model', which it needs"),
        ("base_model: models/base\n", "", 1, "the recipe has no 'base_model', which it needs"),
    ],
)
def test_mistakes_name_their_line(old: str, new: str, line: int, problem: str) -> None:
    assert old in RECIPE
    with pytest.raises(RecipeError) as caught:
        parse_moe_recipe(RECIPE.replace(old, new), "moe.yml")
    assert str(caught.value).startswith(f"moe.yml:{line}: {problem}")


def test_the_same_prompts_for_all_experts() -> None:
    text = RECIPE.replace('[sum, "two sums"]\n    negative_prompts: [poem]', "[poem]")
    with pytest.raises(RecipeError, match="all experts have the same prompts"):
        parse_moe_recipe(text)
    assert parse_moe_recipe(text.replace("cheap_embed", "random")).gate_mode == "random"


@pytest.mark.parametrize("text", ["", "a: 1\n---\nb: 2\n"])
def test_not_one_document(text: str) -> None:
    with pytest.raises(RecipeError, match="documents; expected one recipe of a mixture"):
        parse_moe_recipe(text)


def test_a_recipe_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="the recipe cannot be read: No such file"):
        load_moe_recipe(tmp_path / "none.yml")
    (tmp_path / "latin.yml").write_bytes(b"base_model: a\n# \xe9\n")
    with pytest.raises(RecipeError, match=r"latin\.yml:2: the recipe is not UTF-8 text"):
        load_moe_recipe(tmp_path / "latin.yml")


def test_one_expert_needs_no_other_prompts() -> None:
    text = "{base_model: a, experts_per_token: 1, experts: [{source_model: a, positive_prompts: [x]}]}"
    assert parse_moe_recipe(text).experts[0].positive_prompts == ("x",)


def test_a_file_has_one_recipe() -> None:
    recipe = "{base_model: a, gate_mode: random, experts: [{source_model: a}, {source_model: b}]}"
    with pytest.raises(RecipeError, match=r"^two.yml:1: the file has 2 documents; expected one recipe of a mixture"):
        parse_moe_recipe(f"{recipe}\n---\n{recipe}\n", "two.yml")


@pytest.mark.parametrize(("prompts", "layout"), [("", "deepseek"), (", positive_prompts: [x]", "qwen2_moe")])
def test_only_some_layouts_have_a_gate_for_shared_experts(prompts: str, layout: str) -> None:
    experts = "[{source_model: a, positive_prompts: [x]}, {source_model: b, positive_prompts: [y]}]"
    recipe = f"{{base_model: a, experts: {experts}, shared_experts: [{{source_model: a{prompts}}}]}}"
    assert choose_layout(parse_moe_recipe(recipe), "llama").name == layout


def test_a_layout_without_a_gate_for_shared_experts_takes_no_prompts_of_theirs() -> None:
    experts = "[{source_model: a, positive_prompts: [x]}, {source_model: b, positive_prompts: [y]}]"
    shared = "[{source_model: a, positive_prompts: [z]}]"
    recipe = f"{{base_model: a, architecture: deepseek, experts: {experts}, shared_experts: {shared}}}"
    with pytest.raises(RecipeError, match="1 shared experts, without prompts"):
        choose_layout(parse_moe_recipe(recipe), "llama")
