"""One decoder block: attention, then an MLP or a mixture of experts, each with a residual connection.

The functions run on arrays, or on values that are being recorded (`lbrx.engine.recording`). They must therefore not
depend on the numbers in an array; `run_in_step` wraps code that does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lbrx.models.inference.cache import KeyValueCache
from lbrx.models.inference.experts import mixed_experts
from lbrx.models.inference.positions import Positions
from lbrx.models.inference.spec import ModelSpec
from lbrx.models.inference.weights import AttentionWeights, ExpertWeights, Floats, LayerWeights, Matrix, MlpWeights
from lbrx.ops import cached_attention, gelu_mul, linear, rms_norm, rotate, silu_mul


def run_block(
    hidden: Floats,
    spec: ModelSpec,
    number: int,
    weights: LayerWeights,
    positions: Positions,
    cache: KeyValueCache,
) -> Floats:
    """Return the hidden states ``[n, hidden]`` of new tokens after a layer; store its keys and values in the cache."""
    normed = _normed(hidden, "attn_norm", weights, spec)
    attended = _attention(normed, spec, number, weights.attention, positions, cache)
    hidden = hidden + _normed(attended, "post_attention_norm", weights, spec)
    normed = _normed(hidden, "ffn_norm", weights, spec)
    if isinstance(weights.mlp, ExpertWeights):
        updated = mixed_experts(
            normed, weights.mlp, spec.experts_used, lambda rows, expert: run_mlp(rows, expert, spec)
        )
    else:
        updated = run_mlp(normed, weights.mlp, spec)
    return hidden + _normed(updated, "post_ffw_norm", weights, spec)


def normalized(values: Floats, weight: Floats, spec: ModelSpec) -> Floats:
    """RMS norm of rows, multiplied by the weight."""
    return rms_norm(values, weight, spec.norm_epsilon, add_one=spec.norm_adds_one)


def _normed(values: Floats, name: str, weights: LayerWeights, spec: ModelSpec) -> Floats:
    """Apply a norm of a layer; return the values unchanged if the family has no such norm."""
    norm = weights.norms.get(name)
    return values if norm is None else normalized(values, norm, spec)


def run_mlp(values: Floats, weights: MlpWeights, spec: ModelSpec) -> Floats:
    """``down(activation(gate(x)) * up(x))``."""
    gate, up = _projected(values, weights.gate_up, (spec.intermediate, spec.intermediate))
    gated = silu_mul(gate, up) if spec.decoder.mlp.activation == "silu" else gelu_mul(gate, up)
    return _times(gated, weights.down)


def _attention(
    values: Floats,
    spec: ModelSpec,
    number: int,
    weights: AttentionWeights,
    positions: Positions,
    cache: KeyValueCache,
) -> Floats:
    tokens, layer = len(values), spec.layers[number]
    widths = (spec.query_width, spec.key_width, spec.key_width)
    projected = _projected(values, weights.projections, widths)
    if spec.decoder.attention.qk_norm == "row":
        projected[:2] = _qk_normed(projected[:2], weights, spec)
    queries, keys, new_values = (_heads(part, spec.head_dim) for part in projected)
    if spec.decoder.attention.qk_norm == "head":
        queries, keys = _qk_normed([queries, keys], weights, spec)
    turns = positions.turns(layer.rope)
    queries, keys = (rotate(part, *turns, spec.rope_style) for part in (queries, keys))
    mixed = cached_attention(
        queries,
        keys,
        new_values,
        cache.layers[number],
        scale=spec.attention_scale,
        window=layer.window,
        softcap=spec.attention_softcap,
    )
    return _times(mixed.transpose(1, 0, 2).reshape(tokens, spec.query_width), weights.output)


def _qk_normed(values: Sequence[Floats], weights: AttentionWeights, spec: ModelSpec) -> list[Floats]:
    assert weights.query_norm is not None
    assert weights.key_norm is not None
    norms = (weights.query_norm, weights.key_norm)
    return [normalized(part, norm, spec) for part, norm in zip(values, norms, strict=True)]


def _heads(values: Floats, head_dim: int) -> Floats:
    """Reshape ``[n, heads * head_dim]`` to ``[heads, n, head_dim]``."""
    return values.reshape(len(values), -1, head_dim).transpose(1, 0, 2)


def _projected(values: Floats, matrices: tuple[Matrix, ...], widths: tuple[int, ...]) -> list[Floats]:
    """Return the results of several matrices, or split the result of one joined matrix at the widths."""
    if len(matrices) == len(widths):
        return [_times(values, matrix) for matrix in matrices]
    whole = _times(values, matrices[0])
    ends = np.cumsum(widths)
    return [whole[:, end - width : end] for end, width in zip(ends.tolist(), widths, strict=True)]


def _times(values: Floats, matrix: Matrix) -> Floats:
    return linear(values, matrix.weight, matrix.bias)
