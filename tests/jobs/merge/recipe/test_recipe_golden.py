"""The recipes that mergekit 0.1.5 ran: all of them are read, and their parameters give mergekit's results."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file

import support
from lbrx.jobs.merge.methods import TensorParameters, load_method
from lbrx.jobs.merge.recipe import (
    Recipe,
    Slice,
    base_index,
    layer_position,
    load_recipes,
    resolve_tensor,
)

GOLDEN = support.GOLDEN / "mergekit"
RECIPES = sorted((GOLDEN / "recipes").glob("*.yml"))
MODEL_LAYERS = 3

Array = npt.NDArray[np.float64]


def golden(name: str) -> Recipe:
    (recipe,) = load_recipes(GOLDEN / "recipes" / f"{name}.yml")
    return recipe


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe_is_read_without_warnings(path: Path) -> None:
    (recipe,) = load_recipes(path)
    assert path.stem.startswith(recipe.method) or path.stem in ("slices_mixed",)
    assert recipe.warnings == ()
    assert recipe.dtype is not None
    assert recipe.dtype.name == "f32"
    assert {str(model) for model in recipe.models} <= {f"models/{name}" for name in ("a", "b", "c", "base")}


def test_there_are_33_recipes() -> None:
    assert len(RECIPES) == 33


def test_bf16_output() -> None:
    recipe = golden("linear_bf16")
    assert recipe.out_dtype is not None
    assert recipe.out_dtype.name == "bf16"


def parameters_at(recipe: Recipe, layer: int | None, tensor: str, slice_index: int = 0) -> TensorParameters:
    """The parameters of a tensor of a layer of a slice, or of one outside the layers."""
    part = recipe.module("default").slices[slice_index]
    layers = part.layers or MODEL_LAYERS
    return resolve_tensor(
        recipe,
        load_method(recipe.method).spec,
        module="default",
        slice_index=slice_index,
        input_names=[tensor] * len(part.sources),
        output_name=tensor,
        t=0.0 if layer is None else layer_position(layer, layers),
    )


def test_gradients_and_filters_of_linear() -> None:
    recipe = golden("linear_gradient_filter")
    attention = [parameters_at(recipe, i, f"layers.{i}.self_attn.q").across_models("weight") for i in range(3)]
    mlp = [parameters_at(recipe, i, f"layers.{i}.mlp.up").across_models("weight") for i in range(3)]
    assert attention == [(0.1, 0.2), (0.9, 0.5), (0.3, 0.8)]
    assert mlp == [(1.0, 0.2), (0.6, 0.5), (0.2, 0.8)]
    assert parameters_at(recipe, None, "model.norm.weight").across_models("weight") == (0.25, 0.2)


def test_gradients_and_filters_of_slerp() -> None:
    recipe = golden("slerp_slices_gradient")
    assert [parameters_at(recipe, i, "self_attn").shared["t"] for i in range(3)] == [0.0, 0.3, 1.0]
    assert [parameters_at(recipe, i, "mlp").shared["t"] for i in range(3)] == [1.0, 0.7, 0.0]
    assert parameters_at(recipe, 1, "input_layernorm").shared["t"] == 0.5


def test_gradients_of_ties() -> None:
    recipe = golden("ties_unnormalized_gradient")
    found = [parameters_at(recipe, i, "mlp") for i in range(3)]
    assert [p.across_models("weight") for p in found] == [(0.1, 0.4), (0.5, 0.4), (0.9, 0.4)]
    assert [p.across_models("density") for p in found] == [(1.0, 0.5), (0.7, 0.5), (0.1, 0.5)]
    assert [p.shared["normalize"] for p in found] == [False, False, False]
    assert [p.per_model[2] for p in found] == [None, None, None]  # the base


def test_scales_of_passthrough() -> None:
    recipe = golden("passthrough_scaled")
    assert parameters_at(recipe, 0, "o_proj", 0).across_models("scale") == (None,)
    assert parameters_at(recipe, 0, "o_proj", 1).across_models("scale") == (0.0,)
    assert parameters_at(recipe, 1, "down_proj", 1).across_models("scale") == (0.5,)
    assert parameters_at(recipe, 1, "q_proj", 1).across_models("scale") == (1.0,)


def test_small_numbers_of_karcher() -> None:
    assert parameters_at(golden("karcher"), None, "x").shared == {"max_iter": 10, "tol": 1e-5}


def output_tensors(recipe: Recipe, names: list[str]) -> Iterator[tuple[str, int, list[str], float]]:
    """Each output tensor: its name, the slice it belongs to, its name in each source, and its position."""
    slices = recipe.module("default").slices
    outside = [name for name in names if ".layers." not in name]
    for name in outside:
        index = 0 if "embed_tokens" in name else len(slices) - 1
        yield name, index, [name] * len(slices[index].sources), 0.0
    within = sorted({re.sub(r"layers\.\d+\.", "layers.{}.", name) for name in names} - set(outside))
    first = 0
    for index, part in enumerate(slices):
        layers = part.layers or MODEL_LAYERS
        starts = [source.layer_range[0] if source.layer_range else 0 for source in part.sources]
        for layer in range(layers):
            for pattern in within:
                inputs = [pattern.format(start + layer) for start in starts]
                yield pattern.format(first + layer), index, inputs, layer_position(layer, layers)
        first += layers


def numbers(parameters: TensorParameters, name: str) -> list[float]:
    return [float(value) for value in parameters.across_models(name) if value is not None]


def linear(tensors: list[Array], parameters: TensorParameters, base: int | None) -> Array:
    assert base is None
    weights = numbers(parameters, "weight")
    total = sum(weight * tensor for weight, tensor in zip(weights, tensors, strict=True))
    return np.asarray(total / (sum(weights) if parameters.shared["normalize"] else 1.0))


def passthrough(tensors: list[Array], parameters: TensorParameters, base: int | None) -> Array:
    assert base is None
    (tensor,), (scale,) = tensors, parameters.across_models("scale")
    return tensor if scale is None else tensor * float(scale)


def task_arithmetic(tensors: list[Array], parameters: TensorParameters, base: int | None) -> Array:
    assert base is not None
    others = [tensor for index, tensor in enumerate(tensors) if index != base]
    weights = numbers(parameters, "weight")
    delta = sum(w * (tensor - tensors[base]) for w, tensor in zip(weights, others, strict=True))
    divisor = sum(weights) if parameters.shared["normalize"] else 1.0
    return np.asarray(tensors[base] + float(parameters.shared["lambda"] or 0) * delta / divisor)


def slerp(tensors: list[Array], parameters: TensorParameters, base: int | None) -> Array:
    assert base is not None
    a, b, t = tensors[base], tensors[1 - base], float(parameters.shared["t"] or 0)
    cosine = np.sum(a * b) / (np.linalg.norm(a) * np.linalg.norm(b))
    if abs(cosine) > 0.9995:
        return (1 - t) * a + t * b
    angle = np.arccos(cosine)
    return np.asarray((np.sin((1 - t) * angle) * a + np.sin(t * angle) * b) / np.sin(angle))


REFERENCES = {"linear": linear, "passthrough": passthrough, "task_arithmetic": task_arithmetic, "slerp": slerp}
MERGED = [path.stem for path in RECIPES if golden(path.stem).method in REFERENCES and path.stem != "linear_bf16"]


@pytest.fixture(scope="module")
def models() -> dict[str, dict[str, Any]]:
    names = ("a", "b", "c", "base")
    return {f"models/{name}": load_file(GOLDEN / "models" / name / "model.safetensors") for name in names}


def inputs_of(part: Slice, names: list[str], models: dict[str, dict[str, Any]]) -> list[Array]:
    return [
        models[source.model.path][name].astype(np.float64) for source, name in zip(part.sources, names, strict=True)
    ]


@pytest.mark.parametrize("name", MERGED)
def test_parameters_give_the_result_of_mergekit(name: str, models: dict[str, dict[str, Any]]) -> None:
    recipe = golden(name)
    spec = load_method(recipe.method).spec
    expected = load_file(GOLDEN / "expected" / f"{name}.safetensors")
    seen = set()
    for output_name, index, input_names, t in output_tensors(recipe, list(models["models/a"])):
        part = recipe.module("default").slices[index]
        parameters = resolve_tensor(
            recipe,
            spec,
            module="default",
            slice_index=index,
            input_names=input_names,
            output_name=output_name,
            t=t,
        )
        merged = REFERENCES[recipe.method](
            inputs_of(part, input_names, models), parameters, base_index(recipe, spec, part)
        )
        np.testing.assert_allclose(merged, expected[output_name], rtol=2e-5, atol=1e-6, err_msg=output_name)
        seen.add(output_name)
    assert seen == set(expected)


def test_enough_recipes_are_compared() -> None:
    assert len(MERGED) == 10
