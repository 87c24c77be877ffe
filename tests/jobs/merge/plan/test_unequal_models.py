"""Merges of models that do not have the same tensors, types or names, as they come from different tools."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lbrx.errors import UsageError
from lbrx.jobs.merge.merge import merge, read_and_plan
from lbrx.jobs.merge.plan.vocabularies import tokenizer_donor
from lbrx.jobs.merge.recipe import parse_recipes
from support.tiny import BF16, LINEAR, make_llama, random_tensors, read_json, read_model, write_model

HEAD = {"mtp.fc.weight": np.full((4, 4), 3, np.float32), "mtp.layers.0.norm.weight": np.ones(4, np.float32)}
UNKNOWN = {"model_type": "unheard-of", "num_hidden_layers": 2}


def shapes(layers: int) -> dict[str, tuple[int, ...]]:
    in_layers = {f"model.layers.{layer}.w": (4, 4) for layer in range(layers)}
    return {"model.embed_tokens.weight": (8, 4), **in_layers, "model.norm.weight": (4,), "lm_head.weight": (8, 4)}


def test_tensors_beside_the_model_that_one_input_lacks_are_copied(folder: Path) -> None:
    a, b = random_tensors(shapes(2), 1), random_tensors(shapes(2), 2)
    write_model(folder / "a", a, UNKNOWN)
    write_model(folder / "b", b | HEAD, UNKNOWN)
    plan = read_and_plan(LINEAR, "out")
    assert plan.warnings == ("2 tensors are not in all models and are copied, such as 'mtp.fc.weight' from b",)
    merge(LINEAR, "out", sync=False)
    made = read_model(Path("out"))
    assert set(made) == set(a) | set(HEAD)
    np.testing.assert_array_equal(made["mtp.fc.weight"], HEAD["mtp.fc.weight"])
    np.testing.assert_allclose(made["model.norm.weight"], 0.75 * a["model.norm.weight"] + 0.25 * b["model.norm.weight"])


def test_layers_that_predict_further_tokens_are_copied_from_the_model_that_has_them(folder: Path) -> None:
    config = UNKNOWN | {"num_nextn_predict_layers": 1}
    hub = random_tensors(shapes(3), 1)
    write_model(folder / "a", hub, config)
    write_model(folder / "b", random_tensors(shapes(2), 2), config)
    merge(LINEAR, "out", sync=False)
    np.testing.assert_array_equal(read_model(Path("out"))["model.layers.2.w"], hub["model.layers.2.w"])


def test_a_tensor_of_the_language_model_that_one_input_lacks_is_an_error(folder: Path) -> None:
    whole = random_tensors(shapes(2), 1)
    write_model(folder / "a", whole, UNKNOWN)
    write_model(folder / "b", {name: value for name, value in whole.items() if name != "model.norm.weight"}, UNKNOWN)
    with pytest.raises(UsageError, match=r"tensor 'model.norm.weight' is in a, but not in b"):
        read_and_plan(LINEAR, "out")


def test_a_head_with_fewer_rows_than_the_embedding_is_no_other_vocabulary(folder: Path) -> None:
    sizes = shapes(2) | {"lm_head.weight": (6, 4)}
    a = random_tensors(sizes, 1)
    write_model(folder / "a", a, UNKNOWN)
    write_model(folder / "b", random_tensors(sizes, 2), UNKNOWN)
    stack = "merge_method: passthrough\nslices:\n- sources: [{model: a, layer_range: [0, 2]}]\n"
    merge(stack + "- sources: [{model: b, layer_range: [0, 1]}]\n", "out", sync=False)
    assert read_model(Path("out"))["lm_head.weight"].shape == (6, 4)


def test_without_a_dtype_the_output_can_hold_the_values_of_all_inputs(folder: Path) -> None:
    write_model(folder / "a", {name: np.ones(shape, np.float16) for name, shape in shapes(2).items()}, UNKNOWN)
    large = {name: np.full(shape, 4e30).astype(BF16) for name, shape in shapes(2).items()}
    write_model(folder / "b", large, UNKNOWN)
    merge(LINEAR, "out", sync=False)
    made = read_model(Path("out"))["model.norm.weight"]
    assert made.dtype == np.float32
    np.testing.assert_allclose(made, 1e30, rtol=0.01)


@pytest.mark.parametrize("prefix", ["model.text_model.", "model.language_model."])
def test_a_language_model_inside_of_another_is_found_by_its_prefix(folder: Path, prefix: str) -> None:
    expected = []
    for name, seed in (("a", 1), ("b", 2)):
        plain = make_llama(folder / f"plain_{name}", seed)
        inner = {each.replace("model.", prefix, 1): value for each, value in plain.items()}
        config = read_json(folder / f"plain_{name}/config.json")
        outer = {"model_type": "smolvlm", "architectures": ["SmolVLMForConditionalGeneration"], "text_config": config}
        write_model(folder / name, inner, outer)
        expected.append(inner)
    merge(LINEAR, "out", sync=False)
    made = read_model(Path("out"))
    assert set(made) == set(expected[0])
    name = f"{prefix}layers.1.mlp.up_proj.weight"
    np.testing.assert_allclose(made[name], 0.75 * expected[0][name] + 0.25 * expected[1][name], rtol=1e-6)


def test_the_whole_model_says_whether_its_head_is_tied(folder: Path) -> None:
    for name, seed in (("a", 1), ("b", 2)):
        plain = make_llama(folder / f"plain_{name}", seed, tied=True)
        text = read_json(folder / f"plain_{name}/config.json") | {"tie_word_embeddings": False}
        inner = {each.replace("model.", "model.language_model.", 1): value for each, value in plain.items()}
        outer = {"model_type": "mistral3", "tie_word_embeddings": True, "text_config": text}
        write_model(folder / name, inner, outer)
    merge(LINEAR, "out", sync=False)
    assert "lm_head.weight" not in read_model(Path("out"))


def test_the_tokenizer_of_the_base_is_that_of_the_first_model_if_there_is_no_base() -> None:
    (recipe,) = parse_recipes(LINEAR + "tokenizer_source: base\n")
    assert str(tokenizer_donor(recipe)) == "a"


def test_a_vision_tower_is_found_under_the_name_of_mergekit(folder: Path) -> None:
    tower = {f"visual.blocks.{layer}.w": np.full((4, 4), layer + 1, np.float32) for layer in range(2)}
    for name, seed in (("a", 1), ("b", 2)):
        make_llama(folder / name, seed, extra=tower)
    models = "models: [{model: a, parameters: {weight: 1}}, {model: b, parameters: {weight: 1}}]"
    recipe = f"merge_method: linear\nmodules:\n  text_decoder: {{{models}}}\n  vision_tower: {{{models}}}\n"
    merge(recipe, "out", sync=False)
    np.testing.assert_array_equal(read_model(Path("out"))["visual.blocks.1.w"], tower["visual.blocks.1.w"])


def test_a_projector_is_merged_like_its_tower(folder: Path) -> None:
    for name, seed in (("a", 1), ("b", 2)):
        tower = {f"visual.blocks.{layer}.w": np.full((4, 4), seed, np.float32) for layer in range(2)}
        make_llama(folder / name, seed, extra=tower | {"visual.merger.mlp.0.weight": np.full((4, 4), seed, np.float32)})
    both, last = (
        f"models: [{', '.join(f'{{model: {name}, parameters: {{weight: 1}}}}' for name in names)}]"
        for names in ("ab", "b")
    )
    merge(
        f"merge_method: linear\nmodules:\n  text_decoder: {{{both}}}\n  vision_tower: {{{last}}}\n", "out", sync=False
    )
    made = read_model(Path("out"))
    for name in ("visual.blocks.1.w", "visual.merger.mlp.0.weight"):
        np.testing.assert_array_equal(made[name], np.full((4, 4), 2, np.float32))
