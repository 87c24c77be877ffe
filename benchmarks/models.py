"""A model of TinyLlama's shapes: 1.1 B parameters with 22 layers."""

from __future__ import annotations

import json
from pathlib import Path

import lbrx

LAYERS = 22


def make_model(path: Path, layers: int, seed: int) -> None:
    """A model of TinyLlama's shapes with random weights: the base, or the base with small changes."""
    hidden, inner, keys, vocabulary = 2048, 5632, 256, 32000
    shapes = {"model.embed_tokens.weight": (vocabulary, hidden), "lm_head.weight": (vocabulary, hidden)}
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
        shapes |= {f"{attention}{name}_proj.weight": (hidden, hidden) for name in ("q", "o")}
        shapes |= {f"{attention}{name}_proj.weight": (keys, hidden) for name in ("k", "v")}
        shapes |= {f"{mlp}{name}_proj.weight": (inner, hidden) for name in ("gate", "up")}
        shapes |= {f"{mlp}down_proj.weight": (hidden, inner)}
        shapes |= {f"{prefix}{name}_layernorm.weight": (hidden,) for name in ("input", "post_attention")}
    shapes["model.norm.weight"] = (hidden,)
    tensors = {}
    for name, shape in shapes.items():
        weight = lbrx.normal(shape, 0, name) * 0.02
        change = lbrx.normal(shape, seed, name) * 0.002 if seed else 0.0
        tensors[name] = (weight + change).to("bf16")
    lbrx.save(path, tensors, {"format": "pt"}, max_shard_bytes="2GB")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "vocab_size": vocabulary,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (path / "config.json").write_text(json.dumps(config, indent=1))


def make_tokenizer(directory: Path) -> None:
    """A tokenizer with as many tokens as the model has rows: a conversion wants one."""
    alphabet = [chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324))]
    tokens = alphabet + [f"{first}{second}" for first in alphabet for second in alphabet]
    vocabulary = {token: number for number, token in enumerate(tokens[:32000])}
    merges = [[token[0], token[1]] for token in vocabulary if len(token) == 2]
    model = {"type": "BPE", "vocab": vocabulary, "merges": merges, "byte_fallback": False}
    split = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {"version": "1.0", "added_tokens": [], "model": model, "pre_tokenizer": split, "decoder": split}
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    (directory / "tokenizer_config.json").write_text("{}")
