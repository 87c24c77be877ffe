"""The smaller programs of mergekit: mergekit-pytorch, mergekit-layershuffle, mergekit-multi."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from mergekit.architecture.base import ModelArchitecture
from mergekit.scripts.layershuffle import main as layershuffle
from mergekit.scripts.merge_raw_pytorch import main as merge_pytorch
from mergekit.scripts.multimerge import main as multimerge
from safetensors.numpy import load_file
from transformers import ViTConfig, ViTModel

import lbrx
from lbrx.jobs.merge.shuffle import shuffle_recipe
from support.small_models import GOLDEN

METHODS: dict[str, dict[str, Any]] = {
    "linear": {"models": [("a", {"weight": 0.7}), ("b", {"weight": 0.2}), ("c", {"weight": 0.4})]},
    "slerp": {"base_model": "a", "models": [("b", {})], "parameters": {"t": 0.3}},
    "task_arithmetic": {"base_model": "c", "models": [("a", {"weight": 0.5}), ("b", {"weight": 0.25})]},
    "model_stock": {"base_model": "c", "models": [("a", {}), ("b", {})]},
}


def vit(folder: Path) -> None:
    """Three vision transformers; one has a layer more, another one no pooler."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "image_size": 16, "patch_size": 8}
    for seed, (name, layers, pools) in enumerate((("a", 2, True), ("b", 3, True), ("c", 2, False))):
        torch.manual_seed(seed)
        model = ViTModel(ViTConfig(**sizes, num_hidden_layers=layers), add_pooling_layer=pools)
        model.save_pretrained(folder / f"{name}-model")
        (folder / f"{name}-model" / "model.safetensors").rename(folder / f"{name}.safetensors")


def recipe_of(method: str) -> dict[str, Any]:
    given = METHODS[method]
    models = [{"model": f"{name}.safetensors", "parameters": values} for name, values in given["models"]]
    base = {"base_model": f"{given['base_model']}.safetensors"} if "base_model" in given else {}
    parameters = {"parameters": given["parameters"]} if "parameters" in given else {}
    return {"merge_method": method, "models": models, "dtype": "float32", **base, **parameters}


@pytest.mark.parametrize("tensors", ["intersection", "union"])
@pytest.mark.parametrize("method", METHODS)
def test_raw_checkpoints(method: str, tensors: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    vit(tmp_path)
    recipe = recipe_of(method)
    Path("recipe.yml").write_text(yaml.safe_dump(recipe))
    absolute = {**recipe, "models": [{**each, "model": str(tmp_path / each["model"])} for each in recipe["models"]]}
    if "base_model" in recipe:
        absolute["base_model"] = str(tmp_path / recipe["base_model"])
    Path("absolute.yml").write_text(yaml.safe_dump(absolute))  # mergekit keeps files open by their names
    can_be_merged = method == "linear" or tensors == "intersection"
    if can_be_merged:
        merge_pytorch(["absolute.yml", "theirs", f"--tensor-{tensors}"], standalone_mode=False)
        lbrx.merge("recipe.yml", "ours", tensors=tensors)
        theirs, ours = (load_file(f"{folder}/model.safetensors") for folder in ("theirs", "ours"))
        assert ours.keys() == theirs.keys()
        for name, expected in theirs.items():
            limit = 2e-6 * np.abs(expected).max()
            np.testing.assert_allclose(ours[name], expected, rtol=0, atol=limit, err_msg=name)
    else:  # a tensor that the base lacks: mergekit stops, lbrx copies what only one model has
        with pytest.raises(Exception, match=r"not present|None|base|Base|argument|inputs"):
            merge_pytorch(["absolute.yml", "theirs", f"--tensor-{tensors}"], standalone_mode=False)


@pytest.mark.parametrize("options", [[], ["--full-random"]])
@pytest.mark.parametrize("seed", [1, 7])
def test_the_same_layers_are_chosen(
    options: list[str], seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program of mergekit 0.1.5 asks for a method that its architectures do not have any more."""
    monkeypatch.setattr(ModelArchitecture, "num_layers", lambda _, config: config.num_hidden_layers, raising=False)
    models = [str(GOLDEN / name) for name in "ab"]
    arguments = [str(tmp_path / "theirs"), *options, "--write-yaml", str(tmp_path / "theirs.yml")]
    for model, weight in zip(models, (0.7, 0.34), strict=True):
        arguments += ["-m", model, "-w", str(weight)]
    random.seed(seed)  # the program ignores its --random-seed
    layershuffle([*arguments, "--no-write-model-card"], standalone_mode=False)
    text = shuffle_recipe(models, [0.7, 0.34], seed=seed, full_random=bool(options))
    chosen = [
        [(part["sources"][0]["model"], *part["sources"][0]["layer_range"]) for part in given["slices"]]
        for given in (yaml.safe_load(text), normalized(yaml.safe_load((tmp_path / "theirs.yml").read_text())))
    ]
    assert joined(chosen[0]) == joined(chosen[1])
    lbrx.merge(text, tmp_path / "ours")
    theirs = load_file(tmp_path / "theirs" / "model.safetensors")
    ours = load_file(tmp_path / "ours" / "model.safetensors")
    assert ours.keys() == theirs.keys()
    for name, expected in theirs.items():
        np.testing.assert_array_equal(ours[name], expected, err_msg=name)


def joined(slices: list[tuple[str, int, int]]) -> list[tuple[str, int]]:
    """The model and number of each layer, however they are divided into slices."""
    return [(model, layer) for model, start, end in slices for layer in range(start, end)]


def normalized(recipe: dict[str, Any]) -> dict[str, Any]:
    """A recipe whose models are texts."""
    for part in recipe["slices"]:
        for source in part["sources"]:
            model = source["model"]
            source["model"] = model if isinstance(model, str) else model["model"]["path"]
    return recipe


STAGES = f"""\
name: half
merge_method: linear
dtype: float32
models:
  - {{model: {GOLDEN}/a, parameters: {{weight: 0.5}}}}
  - {{model: {GOLDEN}/b, parameters: {{weight: 0.5}}}}
---
merge_method: slerp
dtype: float32
base_model: {GOLDEN}/base
models: [{{model: half}}]
parameters: {{t: 0.4}}
"""


def test_stages_are_those_of_mergekit(tmp_path: Path) -> None:
    (tmp_path / "recipe.yml").write_text(STAGES)
    arguments = ["--out-path", tmp_path / "theirs", "-I", tmp_path / "kept", "--no-write-model-card"]
    multimerge([str(tmp_path / "recipe.yml"), *map(str, arguments)], standalone_mode=False)
    lbrx.merge(tmp_path / "recipe.yml", tmp_path / "ours", stages=tmp_path / "stages")
    for ours, theirs in (("stages/half", "kept/half"), ("ours", "theirs")):
        found, expected = (load_file(tmp_path / path / "model.safetensors") for path in (ours, theirs))
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=0, atol=2e-6 * np.abs(value).max(), err_msg=name)
