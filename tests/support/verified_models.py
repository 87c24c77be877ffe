"""A small Llama model as arrays and as a directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

import lbrx

HIDDEN, WIDE, VOCABULARY, LAYERS = 64, 96, 32, 2
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": WIDE,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": LAYERS,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
TOKENS = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": [f"t{number}" for number in range(VOCABULARY)]}
Arrays = dict[str, np.ndarray]


def llama_arrays() -> Arrays:
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN)}
    for layer in range(LAYERS):
        rows = {"q_proj": HIDDEN, "k_proj": HIDDEN // 2, "v_proj": HIDDEN // 2, "o_proj": HIDDEN}
        inner: dict[str, tuple[int, ...]] = {f"self_attn.{name}": (size, HIDDEN) for name, size in rows.items()}
        inner |= {"mlp.gate_proj": (WIDE, HIDDEN), "mlp.up_proj": (WIDE, HIDDEN), "mlp.down_proj": (HIDDEN, WIDE)}
        inner |= {"input_layernorm": (HIDDEN,), "post_attention_layernorm": (HIDDEN,)}
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in inner.items()}
    shapes |= {"model.norm.weight": (HIDDEN,), "lm_head.weight": (VOCABULARY, HIDDEN)}
    random = np.random.default_rng(0)
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def write_llama(directory: Path, arrays: Arrays | None = None, **config: Any) -> Path:
    directory.mkdir(exist_ok=True)
    tensors = {name: lbrx.tensor(values) for name, values in (arrays or llama_arrays()).items()}
    lbrx.save(directory / "model.safetensors", tensors, {"format": "pt"})
    (directory / "config.json").write_text(json.dumps(CONFIG | config))
    vocabulary = {f"t{number}": number for number in range(VOCABULARY)}
    tokenizer = {"model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "t0"}}
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    return directory
