"""Latent attention (MLA): the cache has one short vector per token, of which all heads make their keys and values.

The maps of the vectors to keys and values are applied to queries and results instead, so that keys and values of
heads are never computed.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import UsageError
from lbrx.models.architectures.config import Config
from lbrx.models.architectures.records import LatentAttention
from lbrx.models.architectures.rope import rope_section
from lbrx.models.inference.parts import LayerRun, Memory, PartCode
from lbrx.models.inference.spec import LayerSpec
from lbrx.models.inference.weights import Floats, Matrix, NormWeights, Reader, normalized, times
from lbrx.ops import cached_attention, linear, matrix, rotate
from lbrx.tensors.tensor import Tensor


@dataclass(frozen=True, slots=True)
class LatentWeights:
    """``queries`` are one matrix, or two with a norm between them."""

    queries: tuple[Matrix, ...]
    query_norm: NormWeights | None
    latent: Matrix
    latent_norm: NormWeights
    key_maps: tuple[Tensor, ...]  # of each head, [rank, elements of a key that are not rotated]
    value_maps: tuple[Tensor, ...]  # of each head, [elements of a value, rank]
    output: Matrix
    rank: int
    rotated: int
    scale: float


def latent_memory(_part: LatentAttention, config: Config, _local: dict[str, Any]) -> Memory:
    """Return the sizes of the only head: the vector and the rotated part of keys, and the vector again as the value."""
    if not config.flag("rope_interleave", default=True):
        raise UsageError(f"{config.where}: 'rope_interleave' is false; expected rotations of adjacent elements")
    rank = config.count("kv_lora_rank")
    return Memory(keys=(1, rank + config.count("qk_rope_head_dim"), rank))


def read_latent(reader: Reader, _part: LatentAttention, layer: LayerSpec) -> LatentWeights:
    config, number = reader.spec.config, layer.number
    has_rank = reader.has("attn_q_a.weight", number)
    names = ("attn_q_a", "attn_q_b") if has_rank else ("attn_q",)
    heads = config.count("num_attention_heads")
    keys, values = (reader.tensor(f"attn_{each}_b.weight", number) for each in "kv")
    rotated = config.count("qk_rope_head_dim")
    return LatentWeights(
        queries=tuple(reader.matrix(name, number) for name in names),
        query_norm=reader.norm("attn_q_a_norm", number, "rms") if has_rank else None,
        latent=reader.matrix("attn_kv_a_mqa", number),
        latent_norm=reader.norm("attn_kv_a_norm", number, "rms"),
        key_maps=tuple(_stored(matrix(keys, head)) for head in range(heads)),
        value_maps=tuple(matrix(values, head) for head in range(heads)),
        output=reader.matrix("attn_output", number),
        rank=config.count("kv_lora_rank"),
        rotated=rotated,
        scale=_scale(config, config.count("qk_nope_head_dim") + rotated),
    )


def _stored(weight: Tensor) -> Tensor:
    """Return a matrix whose rows are contiguous: those of Hugging Face files are transposed."""
    return weight.realize() if weight.storage is None or weight.is_view else weight


def _scale(config: Config, size: int) -> float:
    """Return what scores are multiplied by; positions of type yarn change it."""
    rope = rope_section(config)
    scale = float(size**-0.5)
    if rope.get("rope_type") != "yarn" or not rope.get("mscale_all_dim"):
        return scale
    factor = rope.number("factor")
    growth = 0.1 * rope.number("mscale_all_dim") * math.log(factor) + 1.0 if factor > 1 else 1.0
    return scale * growth * growth


def run_latent(values: Floats, weights: LatentWeights, run: LayerRun) -> Floats:
    tokens, heads = len(values), len(weights.key_maps)
    queries = times(values, weights.queries[0])
    if weights.query_norm is not None:
        queries = times(normalized(queries, weights.query_norm), weights.queries[1])
    queries = queries.reshape(tokens, heads, -1).transpose(1, 0, 2)
    latent = times(values, weights.latent)
    vectors = normalized(latent[:, : weights.rank], weights.latent_norm)
    turned_keys, turned_queries = latent[None, :, weights.rank :], queries[:, :, -weights.rotated :]
    if run.layer.rope is not None:
        cosines, sines = run.positions.turns(run.layer.rope)
        style = run.layer.rope_style
        turned_keys, turned_queries = (rotate(each, cosines, sines, style) for each in (turned_keys, turned_queries))
    fixed = queries[:, :, : -weights.rotated]
    mapped = np.stack([linear(fixed[head], key_map) for head, key_map in enumerate(weights.key_maps)])
    mixed = cached_attention(
        np.concatenate([mapped, turned_queries], axis=2),
        np.concatenate([vectors[None], turned_keys], axis=2),
        vectors[None],
        run.cache.layers[run.layer.number],
        scale=weights.scale,
    )
    results = [linear(mixed[head], value_map) for head, value_map in enumerate(weights.value_maps)]
    return times(np.concatenate(results, axis=1), weights.output)


LATENT_ATTENTION = PartCode(read_latent, run_latent, latent_memory)
