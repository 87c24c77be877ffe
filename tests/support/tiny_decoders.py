"""Tiny random models of every family that can be run, as Hugging Face directories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import lbrx

Arrays = dict[str, npt.NDArray[np.float32]]

VOCABULARY = 96
_WINDOW = 5
_COMMON: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "layer_types": ["full_attention"] * 3,
}
_LOCAL = {"sliding_window": _WINDOW, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
_GEMMA = {"head_dim": 16, "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True, **_LOCAL}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": _WINDOW, "layer_types": ["sliding_attention"] * 3},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2": {},
    "qwen3": {"head_dim": 32},
    "gemma2": {
        **_GEMMA,
        "query_pre_attn_scalar": 24,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
    },
    "gemma3_text": {**_GEMMA, "query_pre_attn_scalar": 16, "rope_local_base_freq": 100.0},
    "phi3": {},
    "olmo2": {},
}


def tiny_config(model_type: str, **changes: Any) -> dict[str, Any]:
    return {"model_type": model_type, **_COMMON, **CONFIGS[model_type], **changes}


def tiny_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, model_type = config["hidden_size"], config["model_type"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        for name, shape in _layer_shapes(config, model_type).items():
            shapes[f"model.layers.{layer}.{name}"] = shape
    shapes["model.norm.weight"] = (hidden,)
    if not config.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return shapes


def _layer_shapes(config: dict[str, Any], model_type: str) -> dict[str, tuple[int, ...]]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    size = config.get("head_dim") or hidden // config["num_attention_heads"]
    wide, narrow = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    norms = ["input_layernorm", "post_attention_layernorm"]
    if model_type == "olmo2":
        norms = ["post_attention_layernorm", "post_feedforward_layernorm"]
    if model_type.startswith("gemma"):
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    shapes: dict[str, tuple[int, ...]] = {f"{norm}.weight": (hidden,) for norm in norms}
    if model_type == "phi3":
        shapes["self_attn.qkv_proj.weight"] = (wide + 2 * narrow, hidden)
        shapes["mlp.gate_up_proj.weight"] = (2 * inner, hidden)
    else:
        for name, rows in (("q", wide), ("k", narrow), ("v", narrow)):
            shapes[f"self_attn.{name}_proj.weight"] = (rows, hidden)
            if model_type == "qwen2":
                shapes[f"self_attn.{name}_proj.bias"] = (rows,)
    shapes["self_attn.o_proj.weight"] = (hidden, wide)
    if model_type in ("qwen3", "gemma3_text"):
        shapes |= {"self_attn.q_norm.weight": (size,), "self_attn.k_norm.weight": (size,)}
    if model_type == "olmo2":
        shapes |= {"self_attn.q_norm.weight": (wide,), "self_attn.k_norm.weight": (narrow,)}
    if model_type == "mixtral":
        shapes["block_sparse_moe.gate.weight"] = (config["num_local_experts"], hidden)
        for expert in range(config["num_local_experts"]):
            place = f"block_sparse_moe.experts.{expert}."
            shapes |= {f"{place}w1.weight": (inner, hidden), f"{place}w3.weight": (inner, hidden)}
            shapes[f"{place}w2.weight"] = (hidden, inner)
    else:
        if model_type != "phi3":
            shapes |= {"mlp.gate_proj.weight": (inner, hidden), "mlp.up_proj.weight": (inner, hidden)}
        shapes["mlp.down_proj.weight"] = (hidden, inner)
    return shapes


def tiny_arrays(config: dict[str, Any], seed: int = 0) -> Arrays:
    """Weights of a size at which every part of the model matters."""
    random = np.random.default_rng(seed)
    return {
        name: (random.standard_normal(shape) * (0.3 if len(shape) == 1 else 2 / np.sqrt(shape[-1]))).astype(np.float32)
        + np.float32(1.0 if "norm" in name and not config["model_type"].startswith("gemma") else 0.0)
        for name, shape in tiny_shapes(config).items()
    }


def write_tiny(folder: Path, config: dict[str, Any], arrays: Arrays, model_type: str = "f32") -> Path:
    """The directory of a model with these weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {name: lbrx.tensor(array).to(model_type) for name, array in arrays.items()}
    lbrx.save(folder / "model.safetensors", tensors, {"format": "pt"})
    return folder
