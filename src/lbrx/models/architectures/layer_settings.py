"""Settings of single layers, as transformers 5.23 writes them: ``per_layer_config``, by the number of the layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lbrx.models.architectures.config import Values, text_section

LAYER_SETTINGS = "per_layer_config"


def shared_settings(values: Values, names: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the settings that all layers in ``per_layer_config`` have, under the names of older configs.

    None: they are not known, or not the same in these layers.

    >>> names = {"head_dim": "global_head_dim"}
    >>> shared_settings({"per_layer_config": {"2": {"head_dim": 32}, "5": {"head_dim": 32}}}, names)
    {'global_head_dim': 32}
    >>> shared_settings({"per_layer_config": {"2": {"head_dim": 32}, "5": {"head_dim": 64}}}, names) is None
    True
    >>> shared_settings({"hidden_size": 8}, names)
    {}
    """
    listed = text_section(values).get(LAYER_SETTINGS)
    if not listed:
        return {}
    layers = list(listed.values()) if isinstance(listed, Mapping) else [listed]
    first = layers[0]
    if not isinstance(first, Mapping) or any(layer != first for layer in layers) or not first.keys() <= names.keys():
        return None
    return {names[key]: value for key, value in first.items()}


def with_shared_settings(values: Values, names: Mapping[str, str]) -> Values:
    """Return a config in which older names tell what ``per_layer_config`` says, as far as they can.

    >>> config = {"text_config": {"per_layer_config": {"5": {"head_dim": 32}}}}
    >>> with_shared_settings(config, {"head_dim": "global_head_dim"})["text_config"]["global_head_dim"]
    32
    """
    shared = shared_settings(values, names)
    if not shared:
        return values
    section = text_section(values)
    completed = {**section, **shared}
    return completed if section is values else {**values, "text_config": completed}
