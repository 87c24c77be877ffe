"""Convert config.json for mlx_lm: add explicit top-level keys for what newer transformers nest or imply."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lbrx.models.architectures import known_family
from lbrx.models.architectures.config import text_section
from lbrx.models.architectures.layer_settings import shared_settings

_EXPERT_COUNTS = (
    "num_experts",
    "num_local_experts",
)  # the same number under the names of different transformers versions

_ROPE_NUMBERS = ("rope_theta", "partial_rotary_factor")


def mlx_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config with the keys that mlx_lm looks for; existing keys do not change.

    >>> rope = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0}
    >>> made = mlx_config({"model_type": "llama", "rope_parameters": rope})
    >>> made["rope_theta"], made["rope_scaling"], made["tie_word_embeddings"]
    (500000.0, {'rope_type': 'llama3', 'factor': 8.0}, False)
    """
    section, is_tied = text_section(config), tied_embeddings(config)
    tied = {} if is_tied is None else {"tie_word_embeddings": is_tied}
    wanted = tied | _rope_settings(section.get("rope_parameters"))
    experts = next((section[key] for key in _EXPERT_COUNTS if section.get(key) is not None), None)
    wanted |= {} if experts is None else dict.fromkeys(_EXPERT_COUNTS, experts)
    wanted |= _demanded(config)
    completed = {**section, **{key: value for key, value in wanted.items() if section.get(key) is None}}
    if section is config:
        return completed
    # mlx_lm takes some values of the language model from the top, and whether embeddings are tied from its section.
    vocabulary = {key: section[key] for key in ("vocab_size",) if key in section and key not in config}
    return {**config, **vocabulary, **tied, "text_config": {**completed, **tied}}


def _demanded(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys without which mlx_lm does not load a model of the family, with the defaults of transformers."""
    family = known_family(config)
    if family is None:
        return {}
    values = family.config(config)
    shared = shared_settings(config, family.layer_settings) or {}
    return shared | {key: None if key == "rope_scaling" else values.get(key) for key in family.needed_in_mlx}


def tied_embeddings(config: Mapping[str, Any] | None) -> bool | None:
    """Return whether the head is the embedding: mlx_lm and transformers have different defaults. None if unknown."""
    architecture = None if config is None else known_family(config)
    return None if config is None or architecture is None else architecture.is_tied(config)


def _rope_settings(parameters: Any) -> dict[str, Any]:
    """Return the rope settings. Since transformers 5 they are one object, or one per layer type."""
    if not isinstance(parameters, Mapping):
        return {}
    full, sliding = parameters.get("full_attention"), parameters.get("sliding_attention")
    if isinstance(full, Mapping):
        return _rope_settings(full) | _base(sliding, "rope_local_base_freq")
    settings = {
        key: parameters[key]
        for key in ("rope_theta", "partial_rotary_factor")
        if isinstance(parameters.get(key), int | float)
    }
    scaling = {key: value for key, value in parameters.items() if key not in _ROPE_NUMBERS}
    if scaling.get("rope_type", "default") != "default":
        settings["rope_scaling"] = scaling
    return settings


def _base(parameters: Any, key: str) -> dict[str, Any]:
    """Return the base of the rotary positions under another key, if given."""
    theta = parameters.get("rope_theta") if isinstance(parameters, Mapping) else None
    return {key: theta} if isinstance(theta, int | float) else {}
