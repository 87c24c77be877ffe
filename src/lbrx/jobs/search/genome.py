"""Genome files of mergekit-evolve, read as recipes with ranges."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from lbrx.jobs.merge.recipe.yaml_lines import YamlMap, parse_documents
from lbrx.jobs.search.space import plain

# The ranges in which each method's parameters are searched.
_WEIGHT, _DENSITY = [0.0, 1.0], [0.05, 1.0]
_PARAMETERS: Mapping[str, tuple[tuple[str, list[float]], ...]] = {
    "linear": (("weight", _WEIGHT),),
    "task_arithmetic": (("weight", _WEIGHT),),
    "ties": (("weight", _WEIGHT), ("density", _DENSITY)),
    "dare_ties": (("weight", _WEIGHT), ("density", _DENSITY)),
    "dare_linear": (("weight", _WEIGHT), ("density", _DENSITY)),
    "slerp": (("t", [0.0, 1.0]),),
}
_KEYS = {
    "allow_negative_weights",
    "base_model",
    "filters",
    "layer_granularity",
    "merge_method",
    "models",
    "normalize",
}


def recipe_of_genome(text: str, source: str, layer_count: Callable[[str], int]) -> str:
    """Return the recipe of a genome file; other texts are returned unchanged.

    ``layer_granularity`` becomes a gradient with a point for each group of layers. ``layer_count`` returns the number
    of layers of a model.

    >>> genome = "genome: {models: [a, b], merge_method: linear}"
    >>> print(recipe_of_genome(genome, "genome.yml", len))  # doctest: +ELLIPSIS
    {"merge_method": "linear", "dtype": "bfloat16", "models": [{"model": "a", "parameters": {"weight": {"search": ...
    """
    (document, *rest) = parse_documents(text, source) or (None,)
    if rest or not isinstance(document, YamlMap) or "genome" not in document.entries:
        return text
    node = document.entries["genome"]
    if not isinstance(node, YamlMap):
        raise document.location.error("'genome' is not a mapping; expected models and a merge_method")
    genome = plain(node)
    gradual = {"smooth"} if genome.get("smooth") is True else set()  # gradients always are
    unknown = sorted(genome.keys() - _KEYS - gradual)
    if unknown:
        raise node.key_locations[unknown[0]].error(
            f"{unknown[0]!r} of a genome is not supported; expected {', '.join(sorted(_KEYS))}"
        )
    method, models = genome.get("merge_method", "dare_ties"), genome.get("models")
    if not isinstance(models, list) or not models or not all(isinstance(model, str) for model in models):
        raise node.location.error("the genome has no list of models")
    if method not in _PARAMETERS:
        raise node.location.error(f"the method {method!r} cannot be evolved; expected one of {', '.join(_PARAMETERS)}")
    points = _points(genome, node, layer_count)
    shared = {} if method in ("slerp",) else {"normalize": bool(genome.get("normalize", False))}
    names = _PARAMETERS[method]
    ranges = {
        name: _range([-1.0, 1.0] if name == "weight" and genome.get("allow_negative_weights") else ends, points)
        for name, ends in names
    }
    filters = genome.get("filters") or []
    if not isinstance(filters, list) or not all(isinstance(each, str) for each in filters):
        raise node.location.error(f"'filters' is {filters!r:.60}; expected a list of texts")
    own = {name: _filtered(value, filters) for name, value in ranges.items()}
    recipe: dict[str, Any] = {"merge_method": method, "dtype": "bfloat16"}
    if genome.get("base_model"):
        recipe["base_model"] = genome["base_model"]
    if method == "slerp":
        recipe |= {"models": [{"model": model} for model in models], "parameters": own}
    else:
        recipe["models"] = [{"model": model, "parameters": own} for model in models]
        recipe["parameters"] = shared
    return json.dumps(recipe)


def _points(genome: Mapping[str, Any], node: YamlMap, layer_count: Callable[[str], int]) -> int | None:
    granularity = genome.get("layer_granularity")
    if not granularity:
        return None
    if isinstance(granularity, bool) or not isinstance(granularity, int) or granularity < 1:
        raise node.location.error(f"'layer_granularity' is {granularity!r}; expected a positive number of layers")
    return max(layer_count(str(genome["models"][0])) // granularity, 2)


def _range(ends: list[float], points: int | None) -> dict[str, Any]:
    return {"search": ends} if points is None else {"search": ends, "points": points}


def _filtered(value: dict[str, Any], filters: list[Any]) -> Any:
    """One range for all tensors, or one for each filter and one for the rest."""
    if not filters:
        return value
    return [*({"filter": name, "value": value} for name in filters), {"value": value}]
