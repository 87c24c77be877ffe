"""Recipes of mixtures of experts: mergekit-moe's YAML to a frozen, strictly validated ``MoeRecipe``."""

from __future__ import annotations

import os
from dataclasses import field

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import DTypeError
from lbrx.jobs.merge.methods.parameters import coerce
from lbrx.jobs.merge.recipe import ModelRef, RecipeLine
from lbrx.jobs.merge.recipe.load import recipe_text
from lbrx.jobs.merge.recipe.reading import (
    optional,
    read_int,
    read_list,
    read_map,
    read_reference,
    read_text,
    unknown_name,
    wrong_type,
)
from lbrx.jobs.merge.recipe.yaml_lines import (
    YamlMap,
    YamlNode,
    YamlScalar,
    parse_documents,
)
from lbrx.tensors.dtype import DType, dtype

HIDDEN_GATES = ("hidden", "hidden_avg", "hidden_last")
PROMPTED_GATES = (*HIDDEN_GATES, "cheap_embed")
GATE_MODES = (*PROMPTED_GATES, "random", "uniform_random", "uniform")

DEFAULT_EXPERTS_PER_TOKEN = 2

_KEYS = ("base_model", "experts", "gate_mode", "dtype", "experts_per_token", "shared_experts", "architecture")
_MERGE_KEYS = dict.fromkeys(("merge_method", "models", "slices", "modules"), "a recipe of 'lbrx merge'")
_EXPERT_KEYS = ("source_model", "positive_prompts", "negative_prompts", "noise_scale", "residual_scale")
_NOWHERE = RecipeLine("recipe", 1)


@dataclass(frozen=True, slots=True)
class Expert:
    """A model whose feed-forward matrices become one expert of every layer.

    ``noise_scale`` times normal noise is added to them; what the expert writes back is multiplied by
    ``residual_scale``.
    """

    model: ModelRef
    positive_prompts: tuple[str, ...] = ()
    negative_prompts: tuple[str, ...] = ()
    noise_scale: float = 0.0
    residual_scale: float = 1.0
    location: RecipeLine = field(default=_NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class MoeRecipe:
    """A mixture: everything but the experts comes from the base model."""

    base_model: ModelRef
    experts: tuple[Expert, ...]
    shared_experts: tuple[Expert, ...] = ()
    gate_mode: str = "hidden"
    experts_per_token: int = DEFAULT_EXPERTS_PER_TOKEN
    dtype: DType | None = None
    architecture: str | None = None
    warnings: tuple[str, ...] = field(default=(), compare=False)  # about settings without effect
    location: RecipeLine = field(default=_NOWHERE, compare=False)
    gate_location: RecipeLine = field(default=_NOWHERE, compare=False)

    @property
    def models(self) -> tuple[ModelRef, ...]:
        """Every model, once each, the base first."""
        experts = (*self.experts, *self.shared_experts)
        return tuple(dict.fromkeys((self.base_model, *(expert.model for expert in experts))))


def load_moe_recipe(path: str | os.PathLike[str]) -> tuple[MoeRecipe, str]:
    """The recipe of a YAML file, and its text. No model is opened.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "moe.yml")
    ...     _ = path.write_text("{base_model: a, gate_mode: random, experts: [{source_model: a}, {source_model: b}]}")
    ...     len(load_moe_recipe(path)[0].experts)
    2
    """
    text = recipe_text(path)
    return parse_moe_recipe(text, os.fspath(path)), text


def parse_moe_recipe(text: str, source: str = "recipe.yml") -> MoeRecipe:
    """The recipe in a YAML text; ``source`` is the name that errors begin with.

    >>> recipe = parse_moe_recipe("{base_model: a, gate_mode: random, experts: [{source_model: a}, {source_model: b}]}")
    >>> recipe.gate_mode, [str(model) for model in recipe.models]
    ('random', ['a', 'b'])
    """
    documents = parse_documents(text, source)
    if len(documents) != 1:
        raise RecipeLine(source, 1).error(f"the file has {len(documents)} documents; expected one recipe of a mixture")
    mapping = read_map(documents[0], "the recipe", _KEYS, required=("base_model", "experts"), elsewhere=_MERGE_KEYS)
    recipe = MoeRecipe(
        base_model=read_reference(mapping.entries["base_model"], "'base_model'"),
        experts=_read_experts(mapping.entries["experts"], "'experts'"),
        shared_experts=_read_shared(mapping),
        gate_mode=_read_gate_mode(mapping),
        experts_per_token=_read_experts_per_token(mapping),
        dtype=_read_dtype(mapping),
        architecture=None if (node := optional(mapping, "architecture")) is None else read_text(node, "'architecture'"),
        warnings=tuple(dict.fromkeys(mapping.ignored)),
        location=mapping.location,
        gate_location=mapping.key_locations.get("gate_mode", mapping.location),
    )
    _check(recipe, mapping)
    return recipe


def _read_experts(node: YamlNode, what: str) -> tuple[Expert, ...]:
    return tuple(_read_expert(item, what) for item in read_list(node, what))


def _read_shared(mapping: YamlMap) -> tuple[Expert, ...]:
    node = optional(mapping, "shared_experts")
    return () if node is None else _read_experts(node, "'shared_experts'")


def _read_expert(node: YamlNode, what: str) -> Expert:
    mapping = read_map(node, f"an item of {what}", _EXPERT_KEYS, required=("source_model",))
    return Expert(
        read_reference(mapping.entries["source_model"], "'source_model'"),
        positive_prompts=_read_prompts(mapping, "positive_prompts"),
        negative_prompts=_read_prompts(mapping, "negative_prompts"),
        noise_scale=_read_number(mapping, "noise_scale", default=0.0),
        residual_scale=_read_number(mapping, "residual_scale", default=1.0),
        location=mapping.location,
    )


def _read_prompts(mapping: YamlMap, key: str) -> tuple[str, ...]:
    node = optional(mapping, key)
    return () if node is None else tuple(read_text(item, f"an item of {key!r}") for item in read_list(node, repr(key)))


def _read_number(mapping: YamlMap, key: str, default: float) -> float:
    node = optional(mapping, key)
    if node is None:
        return default
    if not isinstance(node, YamlScalar) or node.value is None:
        raise wrong_type(node, repr(key), "a number")
    return float(coerce("float", node.value, node.location, key))


def _read_gate_mode(mapping: YamlMap) -> str:
    node = optional(mapping, "gate_mode")
    if node is None:
        return "hidden"
    mode = read_text(node, "'gate_mode'")
    if mode not in GATE_MODES:
        raise unknown_name(node.location, "gate mode", mode, GATE_MODES)
    return mode


def _read_experts_per_token(mapping: YamlMap) -> int:
    node = optional(mapping, "experts_per_token")
    return DEFAULT_EXPERTS_PER_TOKEN if node is None else read_int(node, "'experts_per_token'", minimum=1)


def _read_dtype(mapping: YamlMap) -> DType | None:
    node = optional(mapping, "dtype")
    if node is None:
        return None
    name = read_text(node, "'dtype'").removeprefix("torch.")
    try:
        result = dtype(name)
    except DTypeError as error:
        raise node.location.error(f"'dtype': {error}") from error
    if not result.is_float:
        raise node.location.error(f"'dtype' is {name!r}; expected a floating type such as float32 or bfloat16")
    return result


def _check(recipe: MoeRecipe, mapping: YamlMap) -> None:
    if recipe.experts_per_token > len(recipe.experts):
        location = mapping.key_locations.get("experts_per_token", mapping.location)
        raise location.error(
            f"'experts_per_token' is {recipe.experts_per_token}, but there are {len(recipe.experts)} experts; "
            f"expected at least as many"
        )
    if recipe.gate_mode not in PROMPTED_GATES:
        return
    for number, expert in enumerate(recipe.experts):
        if not expert.positive_prompts:
            chosen = "" if "gate_mode" in mapping.entries else ", the one that holds without 'gate_mode',"
            others = ", ".join(repr(mode) for mode in GATE_MODES if mode not in PROMPTED_GATES)
            raise expert.location.error(
                f"expert {number} has no 'positive_prompts', which the gate mode {recipe.gate_mode!r}{chosen} needs; "
                f"expected prompts of what it is good at, or a 'gate_mode' that needs none: {others}"
            )
    prompts = {(expert.positive_prompts, expert.negative_prompts) for expert in recipe.experts}
    if len(recipe.experts) > 1 and len(prompts) == 1:
        raise recipe.location.error(
            "all experts have the same prompts, so that nothing could choose between them; "
            "expected for each expert prompts of what it is good at"
        )
