"""The merges that mergekit 0.1.5 made, run with lbrx's methods: one expression per tensor of the output."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes  # noqa: F401 - NumPy learns bfloat16 from it
import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

import support
from lbrx import Tensor, tensor
from lbrx.jobs.merge.methods import MergeContext, load_method, method_lookup
from lbrx.jobs.merge.recipe import Recipe, base_index, layer_position, load_recipes, resolve_tensor

GOLDEN = support.GOLDEN / "mergekit"
RECIPES = sorted(path.stem for path in (GOLDEN / "recipes").glob("*.yml"))

_LAYER = re.compile(r"(.*\.layers\.)(\d+)(\..*)")

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class GoldenTensor:
    """A tensor of the output as lbrx makes it, as mergekit made it, and what both made it from."""

    name: str
    merged: Tensor
    expected: Array
    inputs: tuple[Array, ...]


@dataclass(frozen=True)
class _Place:
    """Where a tensor of the output comes from; ``layer`` counts from the slice's first, None outside of layers."""

    name: str
    slice_index: int
    layer: int | None


@cache
def load_model(reference: str) -> dict[str, Array]:
    return load_file(GOLDEN / reference / "model.safetensors")


@cache
def model_layers(reference: str) -> int:
    config = json.loads((GOLDEN / reference / "config.json").read_text())
    return int(config["num_hidden_layers"])


def golden_tensors(name: str) -> Iterator[GoldenTensor]:
    """Every tensor that mergekit wrote for a recipe."""
    (recipe,) = load_recipes(GOLDEN / "recipes" / f"{name}.yml", lookup=method_lookup())
    for output_name, expected in sorted(load_file(GOLDEN / "expected" / f"{name}.safetensors").items()):
        yield _golden_tensor(recipe, _place(recipe, output_name), expected)


def _golden_tensor(recipe: Recipe, place: _Place, expected: Array) -> GoldenTensor:
    method = load_method(recipe.method)
    part = recipe.module("default").slices[place.slice_index]
    names = [_input_name(place, source.layer_range) for source in part.sources]
    layers = part.layers or model_layers(str(part.sources[0].model))
    parameters = resolve_tensor(
        recipe,
        method.spec,
        module="default",
        slice_index=place.slice_index,
        input_names=names,
        output_name=place.name,
        t=0.0 if place.layer is None else layer_position(place.layer, layers),
    )
    inputs = [load_model(str(source.model))[name] for source, name in zip(part.sources, names, strict=True)]
    base = base_index(recipe, method.spec, part)
    merged = method.merge([tensor(array) for array in inputs], base, parameters, MergeContext(place.name))
    assert recipe.output_dtype is not None
    return GoldenTensor(place.name, merged.to(recipe.output_dtype), expected, tuple(inputs))


def _place(recipe: Recipe, name: str) -> _Place:
    """The slice that a tensor belongs to: embeddings to the first, final norm and head to the last."""
    slices = recipe.module("default").slices
    match = _LAYER.fullmatch(name)
    if match is None:
        return _Place(name, 0 if "embed" in name else len(slices) - 1, None)
    layer = int(match[2])
    for index, part in enumerate(slices):
        layers = part.layers or model_layers(str(part.sources[0].model))
        if layer < layers:
            return _Place(name, index, layer)
        layer -= layers
    raise AssertionError(f"{name} is beyond the slices of the recipe")


def _input_name(place: _Place, layer_range: tuple[int, int] | None) -> str:
    match = _LAYER.fullmatch(place.name)
    if match is None or place.layer is None:
        return place.name
    first = layer_range[0] if layer_range else 0
    return f"{match[1]}{first + place.layer}{match[3]}"


def fusion_importance(base: Array, model: Array) -> Array:
    """The importance of every element for Arcee Fusion, in float64."""
    p, q = (np.exp(values) / np.exp(values).sum(-1, keepdims=True) + 1e-8 for values in (model, base))
    divergence = (p * np.log(p / q)).sum(-1, keepdims=True)
    return np.asarray(np.abs(model - base) * divergence)


def fusion_threshold(importance: Array) -> float:
    """The median plus 1.5 interquartile ranges, of lower order statistics."""
    ordered = np.sort(importance, axis=None)
    quarter, half, three_quarters = (ordered[(ordered.size - 1) * step // 4] for step in (1, 2, 3))
    return float(half + 1.5 * (three_quarters - quarter))
