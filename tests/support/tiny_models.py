"""Tiny models of every family that can be converted: config.json and random weights, made without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

import lbrx

Shapes = dict[str, tuple[int, ...]]
Arrays = dict[str, npt.NDArray[Any]]

NUMPY_TYPES: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
TORCH_NAMES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
_GEMMA = {"head_dim": 32, "query_pre_attn_scalar": 32, "tie_word_embeddings": True, "sliding_window": 64}
# What a config.json of each family has besides the above.
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"]},
    "mistral": {"architectures": ["MistralForCausalLM"], "head_dim": 32, "sliding_window": None},
    "mixtral": {"architectures": ["MixtralForCausalLM"], "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "tie_word_embeddings": True, "use_sliding_window": False},
    "qwen2_moe": {
        "architectures": ["Qwen2MoeForCausalLM"],
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 64,
        "norm_topk_prob": False,
    },
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "head_dim": 32},
    "qwen3_moe": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "head_dim": 32,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
    },
    "gemma2": {
        "architectures": ["Gemma2ForCausalLM"],
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        **_GEMMA,
    },
    "gemma3_text": {"architectures": ["Gemma3ForCausalLM"], "rope_local_base_freq": 5000.0, **_GEMMA},
    "phi3": {"architectures": ["Phi3ForCausalLM"], "original_max_position_embeddings": 256},
    "olmo2": {"architectures": ["Olmo2ForCausalLM"]},
}
MODEL_TYPES = tuple(CONFIGS)


def tiny_config(model_type: str, **changes: Any) -> dict[str, Any]:
    """The config.json of a tiny model, in the form of older transformers."""
    return {"model_type": model_type, **SMALL, "torch_dtype": "bfloat16", **CONFIGS[model_type], **changes}


def tiny_shapes(config: dict[str, Any]) -> Shapes:
    """The names and shapes of all tensors that transformers would save."""
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    shapes: Shapes = {"model.embed_tokens.weight": (vocab, hidden)}
    for layer in range(config["num_hidden_layers"]):
        inner = {**_attention(config), **_feed_forward(config), **_norms(config)}
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in inner.items()}
    shapes["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocab, hidden)
    return shapes


def _attention(config: dict[str, Any]) -> Shapes:
    hidden, heads, model_type = config["hidden_size"], config["num_attention_heads"], config["model_type"]
    head = config.get("head_dim") or hidden // heads
    query, key = heads * head, config["num_key_value_heads"] * head
    if model_type == "phi3":
        return {"self_attn.qkv_proj.weight": (query + 2 * key, hidden), "self_attn.o_proj.weight": (hidden, query)}
    rows = {"q_proj": query, "k_proj": key, "v_proj": key}
    shapes: Shapes = {f"self_attn.{name}.weight": (size, hidden) for name, size in rows.items()}
    shapes["self_attn.o_proj.weight"] = (hidden, query)
    if model_type in ("qwen2", "qwen2_moe") or config.get("attention_bias"):
        shapes |= {f"self_attn.{name}.bias": (size,) for name, size in rows.items()}
    if model_type in ("qwen3", "qwen3_moe", "gemma3_text"):
        shapes |= {f"self_attn.{name}_norm.weight": (head,) for name in ("q", "k")}
    if model_type == "olmo2":
        shapes |= {f"self_attn.{name}_norm.weight": (rows[f"{name}_proj"],) for name in ("q", "k")}
    return shapes


def _feed_forward(config: dict[str, Any]) -> Shapes:
    hidden, model_type, wide = config["hidden_size"], config["model_type"], config["intermediate_size"]
    if model_type == "phi3":
        return {"mlp.gate_up_proj.weight": (2 * wide, hidden), "mlp.down_proj.weight": (hidden, wide)}
    if model_type == "mixtral":
        experts = config["num_local_experts"]
        shapes: Shapes = {"block_sparse_moe.gate.weight": (experts, hidden)}
        for number in range(experts):
            place = f"block_sparse_moe.experts.{number}."
            shapes |= {place + "w1.weight": (wide, hidden), place + "w2.weight": (hidden, wide)}
            shapes[place + "w3.weight"] = (wide, hidden)
        return shapes
    if not model_type.endswith("moe"):
        return _gated("mlp.", hidden, wide)
    shapes = {"mlp.gate.weight": (config["num_experts"], hidden)}
    for number in range(config["num_experts"]):
        shapes |= _gated(f"mlp.experts.{number}.", hidden, config["moe_intermediate_size"])
    if model_type == "qwen2_moe":
        shapes |= _gated("mlp.shared_expert.", hidden, config["shared_expert_intermediate_size"])
        shapes["mlp.shared_expert_gate.weight"] = (1, hidden)
    return shapes


def _gated(place: str, hidden: int, wide: int) -> Shapes:
    rows = {"gate_proj": (wide, hidden), "up_proj": (wide, hidden), "down_proj": (hidden, wide)}
    return {f"{place}{name}.weight": shape for name, shape in rows.items()}


def _norms(config: dict[str, Any]) -> Shapes:
    names = ["input_layernorm", "post_attention_layernorm"]
    if config["model_type"] == "olmo2":
        names = ["post_attention_layernorm", "post_feedforward_layernorm"]
    if config["model_type"].startswith("gemma"):
        names += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    return {f"{name}.weight": (config["hidden_size"],) for name in names}


def tiny_arrays(config: dict[str, Any], type_name: str = "bf16", seed: int = 0) -> Arrays:
    """Random weights; those of norms lie around 1, or around 0 where 1 is added to them."""
    random = np.random.default_rng(seed)
    arrays: Arrays = {}
    for name, shape in tiny_shapes(config).items():
        values = random.standard_normal(shape).astype(np.float32) * 0.1
        if "norm" in name and not config["model_type"].startswith("gemma"):
            values += 1
        arrays[name] = values.astype(NUMPY_TYPES[type_name])
    return arrays


def write_model(
    directory: Path, model_type: str, *, type_name: str = "bf16", seed: int = 0, **changes: Any
) -> tuple[Path, Arrays]:
    """A tiny model on disk, without a tokenizer, and its weights."""
    config = tiny_config(model_type, **{"torch_dtype": TORCH_NAMES[type_name], **changes})
    arrays = tiny_arrays(config, type_name, seed)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    tensors = {name: lbrx.tensor(values) for name, values in arrays.items()}
    lbrx.save(directory / "model.safetensors", tensors, {"format": "pt"})
    return directory, arrays
