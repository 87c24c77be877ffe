"""What rules of mixes ask of a model, read from GGUF metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import FormatError
from lbrx.files.formats.gguf_values import Typed

# Architectures whose models with so many layers get better values. Of llama, only those that share keys.
_LAYERS_OF_LARGE = {"llama": 80, "deci": 80, "olmo": 80, "qwen2": 80, "jais2": 68}


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The numbers of a model that decide types."""

    architecture: str
    layers: int
    queries_per_key: int  # heads that share keys and values, of the first layer
    experts: int
    is_large: bool  # llama.cpp's "70B"

    @property
    def shares_keys(self) -> bool:
        return self.queries_per_key >= 4

    @property
    def has_eight_experts(self) -> bool:
        return self.experts == 8

    @property
    def is_falcon(self) -> bool:
        return self.architecture == "falcon"


def plain_value(metadata: Mapping[str, Any], key: str) -> Any:
    """The value of a key, without its type; None if it is not there."""
    value = metadata.get(key)
    return value.value if isinstance(value, Typed) else value


def model_facts(metadata: Mapping[str, Any]) -> ModelFacts:
    """The facts of the metadata of a GGUF file.

    >>> facts = model_facts({"general.architecture": "llama", "llama.block_count": 2,
    ...     "llama.attention.head_count": 32, "llama.attention.head_count_kv": 8})
    >>> facts.layers, facts.shares_keys
    (2, True)
    """
    architecture = plain_value(metadata, "general.architecture")
    if not isinstance(architecture, str):
        raise FormatError("the metadata has no 'general.architecture'; expected the name of an architecture")
    layers = _number(metadata, f"{architecture}.block_count", None)
    heads = _number(metadata, f"{architecture}.attention.head_count", 0)
    key_heads = _number(metadata, f"{architecture}.attention.head_count_kv", heads)
    is_large = _LAYERS_OF_LARGE.get(architecture) == layers and (architecture != "llama" or heads != key_heads)
    return ModelFacts(
        architecture,
        layers,
        heads // key_heads if key_heads else 0,
        _number(metadata, f"{architecture}.expert_count", 0),
        is_large,
    )


def _number(metadata: Mapping[str, Any], key: str, otherwise: int | None) -> int:
    """An integer, or the first of a list with one integer per layer."""
    value = plain_value(metadata, key)
    if isinstance(value, np.ndarray | Sequence) and not isinstance(value, str) and len(value):
        value = value[0]
    if value is None and otherwise is not None:
        return otherwise
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
        raise FormatError(f"the metadata has {value!r} as {key!r}; expected a whole number")
    return int(value)
