"""Layers removed from a GGUF model: their tensors go, and the blocks behind them move up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import UsageError
from lbrx.files.formats.gguf_encode import typed_metadata
from lbrx.files.formats.gguf_values import Typed
from lbrx.files.output.contents import Contents, PlannedTensor
from lbrx.jobs.quantize.model_facts import model_facts
from lbrx.models.architectures.gguf_roles import layer_of

# Keys below the architecture's name that may have a value for each layer.
_LAYER_KEYS = (
    "attention.head_count",
    "attention.head_count_kv",
    "attention.sliding_window_pattern",
    "feed_forward_length",
)
_CONFIG_KEY = "lbrx.hf.config"  # of the whole model


@dataclass(frozen=True, eq=False)
class Pruned:
    """A model without some of its layers; ``old_names`` are by the new ones."""

    contents: Contents
    old_names: Mapping[str, str]


def pruned(contents: Contents, layers: Sequence[int]) -> Pruned:
    """The model without these layers.

    >>> import lbrx
    >>> tensors = [PlannedTensor.of(f"blk.{layer}.w", lbrx.full((2,), layer, "f32")) for layer in range(3)]
    >>> model = Contents("gguf", tuple(tensors), {"general.architecture": "llama", "llama.block_count": 3})
    >>> pruned(model, [1]).old_names
    {'blk.0.w': 'blk.0.w', 'blk.1.w': 'blk.2.w'}
    """
    facts = model_facts(contents.metadata)
    out_of_range = [layer for layer in layers if layer >= facts.layers]
    if out_of_range:
        raise UsageError(f"layer {out_of_range[0]} cannot be removed; expected one of 0 to {facts.layers - 1}")
    left = [layer for layer in range(facts.layers) if layer not in layers]
    if not left:
        raise UsageError(f"all {facts.layers} layers would be removed; expected at least one to be left")
    renamed = [_renamed(tensor, left, facts.layers) for tensor in contents.tensors]
    remaining = [(new, old.name) for new, old in zip(renamed, contents.tensors, strict=True) if new is not None]
    metadata = _metadata(typed_metadata(contents.metadata), facts.architecture, left, facts.layers)
    return Pruned(
        replace(contents, tensors=tuple(new for new, _ in remaining), metadata=metadata),
        {new.name: old for new, old in remaining},
    )


def _renamed(tensor: PlannedTensor, left: Sequence[int], layers: int) -> PlannedTensor | None:
    layer = layer_of(tensor.name)
    if layer is None or layer >= layers:
        return tensor
    if layer not in left:
        return None
    return tensor.renamed(tensor.name.replace(f"blk.{layer}.", f"blk.{left.index(layer)}.", 1))


def _metadata(pairs: dict[str, Typed], architecture: str, left: Sequence[int], layers: int) -> dict[str, Any]:
    result = {key: typed for key, typed in pairs.items() if key != _CONFIG_KEY}
    count = result[f"{architecture}.block_count"]
    result[f"{architecture}.block_count"] = Typed(len(left), count.type)
    for key in _LAYER_KEYS:
        typed = result.get(f"{architecture}.{key}")
        if typed is not None and typed.element_type is not None and len(typed.value) == layers:
            result[f"{architecture}.{key}"] = Typed(np.asarray(typed.value)[list(left)], typed.type)
    return result
