"""A decoder in plain NumPy and f64, straight from the formulas: what the forward passes are compared with.

It reads Hugging Face names and configs on its own, shares no code with lbrx.models.inference, and has no cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]


def reference_logits(config: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]], ids: list[int]) -> Doubles:
    """The logits ``[n, vocabulary]`` of a tiny model."""
    weights = {name: np.asarray(array).astype(np.float64) for name, array in arrays.items()}
    is_gemma = config["model_type"].startswith("gemma")
    hidden = weights["model.embed_tokens.weight"][ids]
    if is_gemma:
        hidden = hidden * np.sqrt(config["hidden_size"])
    for layer in range(config["num_hidden_layers"]):
        hidden = _block(config, weights, f"model.layers.{layer}.", layer, hidden, is_gemma)
    hidden = _norm(config, hidden, weights["model.norm.weight"])
    tied = config.get("tie_word_embeddings", is_gemma)
    logits: Doubles = hidden @ weights["model.embed_tokens.weight" if tied else "lm_head.weight"].T
    cap = config.get("final_logit_softcapping")
    return cap * np.tanh(logits / cap) if cap else logits


def _norm(config: Mapping[str, Any], x: Doubles, weight: Doubles) -> Doubles:
    scaled = x / np.sqrt((x**2).mean(-1, keepdims=True) + config["rms_norm_eps"])
    return scaled * (weight + 1 if config["model_type"].startswith("gemma") else weight)


def _linear(weights: Mapping[str, Doubles], name: str, x: Doubles) -> Doubles:
    return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0.0)


def _block(
    config: Mapping[str, Any], weights: Mapping[str, Doubles], prefix: str, layer: int, hidden: Doubles, is_gemma: bool
) -> Doubles:
    if config["model_type"] == "olmo2":
        attended = _attention(config, weights, f"{prefix}self_attn.", layer, hidden)
        hidden = hidden + _norm(config, attended, weights[f"{prefix}post_attention_layernorm.weight"])
        updated = _mlp(config, weights, f"{prefix}mlp.", hidden)
        return hidden + _norm(config, updated, weights[f"{prefix}post_feedforward_layernorm.weight"])
    normed = _norm(config, hidden, weights[f"{prefix}input_layernorm.weight"])
    attended = _attention(config, weights, f"{prefix}self_attn.", layer, normed)
    if is_gemma:
        attended = _norm(config, attended, weights[f"{prefix}post_attention_layernorm.weight"])
    hidden = hidden + attended
    before = "pre_feedforward_layernorm" if is_gemma else "post_attention_layernorm"
    normed = _norm(config, hidden, weights[f"{prefix}{before}.weight"])
    if config["model_type"] == "mixtral":
        updated = _mixture(config, weights, f"{prefix}block_sparse_moe.", normed)
    else:
        updated = _mlp(config, weights, f"{prefix}mlp.", normed)
    if is_gemma:
        updated = _norm(config, updated, weights[f"{prefix}post_feedforward_layernorm.weight"])
    return hidden + updated


def _activation(config: Mapping[str, Any], x: Doubles) -> Doubles:
    if config["model_type"].startswith("gemma"):
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return x / (1 + np.exp(-x))


def _mlp(config: Mapping[str, Any], weights: Mapping[str, Doubles], prefix: str, x: Doubles) -> Doubles:
    if f"{prefix}gate_up_proj.weight" in weights:
        gate, up = np.split(_linear(weights, f"{prefix}gate_up_proj", x), 2, axis=-1)
    else:
        gate, up = _linear(weights, f"{prefix}gate_proj", x), _linear(weights, f"{prefix}up_proj", x)
    return _linear(weights, f"{prefix}down_proj", _activation(config, gate) * up)


def _mixture(config: Mapping[str, Any], weights: Mapping[str, Doubles], prefix: str, x: Doubles) -> Doubles:
    scores = np.exp(_linear(weights, f"{prefix}gate", x))
    shares = scores / scores.sum(-1, keepdims=True)
    result = np.zeros_like(x)
    for row, values in enumerate(x):
        best = np.argsort(-shares[row])[: config["num_experts_per_tok"]]
        for expert in best:
            place = f"{prefix}experts.{expert}."
            inner = _activation(config, _linear(weights, f"{place}w1", values)) * _linear(weights, f"{place}w3", values)
            result[row] += shares[row, expert] / shares[row, best].sum() * _linear(weights, f"{place}w2", inner)
    return result


def _attention(
    config: Mapping[str, Any], weights: Mapping[str, Doubles], prefix: str, layer: int, x: Doubles
) -> Doubles:
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    size = config.get("head_dim") or config["hidden_size"] // heads
    if f"{prefix}qkv_proj.weight" in weights:
        cuts = [heads * size, (heads + kv_heads) * size]
        q, k, v = np.split(_linear(weights, f"{prefix}qkv_proj", x), cuts, axis=-1)
    else:
        q, k, v = (_linear(weights, f"{prefix}{name}_proj", x) for name in "qkv")
    if config["model_type"] == "olmo2":
        q = _norm(config, q, weights[f"{prefix}q_norm.weight"])
        k = _norm(config, k, weights[f"{prefix}k_norm.weight"])
    q, k, v = (part.reshape(len(x), -1, size) for part in (q, k, v))
    if f"{prefix}q_norm.weight" in weights and config["model_type"] != "olmo2":
        q = _norm(config, q, weights[f"{prefix}q_norm.weight"])
        k = _norm(config, k, weights[f"{prefix}k_norm.weight"])
    is_local = config["layer_types"][layer] == "sliding_attention"
    theta = config["rope_local_base_freq"] if is_local and "rope_local_base_freq" in config else config["rope_theta"]
    q, k = _turned(q, theta), _turned(k, theta)
    k, v = (np.repeat(part, heads // kv_heads, axis=1) for part in (k, v))
    scores = np.einsum("ihd,jhd->hij", q, k) * config.get("query_pre_attn_scalar", size) ** -0.5
    cap = config.get("attn_logit_softcapping")
    scores = cap * np.tanh(scores / cap) if cap else scores
    ahead = np.arange(len(x))[:, None] - np.arange(len(x))
    seen = (ahead >= 0) & ((ahead < config["sliding_window"]) if is_local else True)
    shares = np.exp(np.where(seen, scores, -np.inf))
    shares /= shares.sum(-1, keepdims=True)
    return _linear(weights, f"{prefix}o_proj", np.einsum("hij,jhd->ihd", shares, v).reshape(len(x), -1))


def _turned(x: Doubles, theta: float) -> Doubles:
    half = x.shape[-1] // 2
    angles = np.arange(len(x))[:, None, None] * theta ** (-np.arange(half) / half)
    low, high = x[..., :half], x[..., half:]
    return np.concatenate(
        [low * np.cos(angles) - high * np.sin(angles), high * np.cos(angles) + low * np.sin(angles)], -1
    )
