"""Dense models for mixtures: the golden Llama models, and smaller ones made here with a tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

import support

Array = npt.NDArray[Any]

GOLDEN = support.GOLDEN / "mergekit" / "models"
WORDS = ("<unk>", "sum", "poem", "of", "two")
HIDDEN, INNER, LAYERS, HEADS, KEY_VALUE_HEADS = 8, 12, 2, 4, 2


def golden(name: str) -> dict[str, Array]:
    return load_file(GOLDEN / name / "model.safetensors")


def config(model_type: str, **changes: Any) -> dict[str, Any]:
    class_name = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2"}[model_type] + "ForCausalLM"
    return {
        "architectures": [class_name],
        "model_type": model_type,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_VALUE_HEADS,
        "vocab_size": len(WORDS) + 1,
        "torch_dtype": "float32",
        **changes,
    }


def tensors(seed: int, has_biases: bool = False) -> dict[str, Array]:
    """A dense model with the names of Llama; ``has_biases`` as Qwen2 has them."""
    random = np.random.default_rng(seed)

    def values(*shape: int) -> Array:
        return random.standard_normal(shape).astype(np.float32)

    key_value_rows = HIDDEN // HEADS * KEY_VALUE_HEADS
    made = {"model.embed_tokens.weight": values(len(WORDS) + 1, HIDDEN)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for part, rows in (("q", HIDDEN), ("k", key_value_rows), ("v", key_value_rows), ("o", HIDDEN)):
            made[f"{prefix}self_attn.{part}_proj.weight"] = values(rows, HIDDEN)
            if has_biases and part != "o":
                made[f"{prefix}self_attn.{part}_proj.bias"] = values(rows)
        made[f"{prefix}mlp.gate_proj.weight"] = values(INNER, HIDDEN)
        made[f"{prefix}mlp.up_proj.weight"] = values(INNER, HIDDEN)
        made[f"{prefix}mlp.down_proj.weight"] = values(HIDDEN, INNER)
        made[f"{prefix}input_layernorm.weight"] = values(HIDDEN)
        made[f"{prefix}post_attention_layernorm.weight"] = values(HIDDEN)
    made["model.norm.weight"] = values(HIDDEN)
    made["lm_head.weight"] = values(len(WORDS) + 1, HIDDEN)
    return made


def write_model(path: Path, made: dict[str, Array], settings: dict[str, Any], has_tokenizer: bool = False) -> Path:
    path.mkdir()
    save_file(made, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(settings))
    if has_tokenizer:
        tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
        tokenizer.pre_tokenizer = Whitespace()
        tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
        tokenizer.save(str(path / "tokenizer.json"))
        (path / "tokenizer_config.json").write_text(json.dumps({"bos_token": {"content": "<s>"}}))
    return path
