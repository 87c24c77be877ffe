"""Tiny models on disk: a llama of a few layers whose tensors have known random values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file

Array = npt.NDArray[Any]
HIDDEN, HEADS, KV_HEADS, INTERMEDIATE = 8, 2, 1, 12

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "torch_dtype": "float32",
    "tie_word_embeddings": False,
}


def llama_shapes(layers: int, vocabulary: int, tied: bool = False) -> dict[str, tuple[int, ...]]:
    kv = HIDDEN // HEADS * KV_HEADS
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, HIDDEN)}
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        shapes |= {
            f"{prefix}input_layernorm.weight": (HIDDEN,),
            f"{prefix}mlp.down_proj.weight": (HIDDEN, INTERMEDIATE),
            f"{prefix}mlp.gate_proj.weight": (INTERMEDIATE, HIDDEN),
            f"{prefix}mlp.up_proj.weight": (INTERMEDIATE, HIDDEN),
            f"{prefix}post_attention_layernorm.weight": (HIDDEN,),
            f"{prefix}self_attn.k_proj.weight": (kv, HIDDEN),
            f"{prefix}self_attn.o_proj.weight": (HIDDEN, HIDDEN),
            f"{prefix}self_attn.q_proj.weight": (HIDDEN, HIDDEN),
            f"{prefix}self_attn.v_proj.weight": (kv, HIDDEN),
        }
    shapes["model.norm.weight"] = (HIDDEN,)
    return shapes if tied else {**shapes, "lm_head.weight": (vocabulary, HIDDEN)}


def random_tensors(shapes: Mapping[str, tuple[int, ...]], seed: int, dtype: Any = np.float32) -> dict[str, Array]:
    generator = np.random.default_rng(seed)
    return {name: generator.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}


def write_model(path: Path, tensors: Mapping[str, Array], config: Mapping[str, Any] | None) -> Path:
    """A directory with one SafeTensors file and, if there is a config, config.json."""
    path.mkdir(parents=True, exist_ok=True)
    save_file(dict(tensors), path / "model.safetensors", {"format": "pt"})
    if config is not None:
        (path / "config.json").write_text(json.dumps(config))
    return path


def make_llama(
    path: Path,
    seed: int,
    *,
    layers: int = 2,
    vocabulary: int = 16,
    dtype: Any = np.float32,
    tied: bool = False,
    extra: Mapping[str, Array] | None = None,
    without: tuple[str, ...] = (),
    **config: Any,
) -> dict[str, Array]:
    """Write a llama and return its tensors. ``config`` adds keys to config.json, or removes those that are None."""
    tensors = random_tensors(llama_shapes(layers, vocabulary, tied), seed, dtype) | dict(extra or {})
    tensors = {name: values for name, values in tensors.items() if name not in without}
    full = CONFIG | {"num_hidden_layers": layers, "vocab_size": vocabulary, "tie_word_embeddings": tied} | config
    write_model(path, tensors, {key: value for key, value in full.items() if value is not None})
    return tensors


def read_model(path: Path) -> dict[str, Array]:
    """All tensors of a merged model, from one file or from shards."""
    found: dict[str, Array] = {}
    for file in sorted(path.glob("*.safetensors")):
        found |= load_file(file)
    return found


def read_json(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded


def directory_bytes(path: Path) -> dict[str, bytes]:
    """Every file of a directory by name: what two merges are compared by."""
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}


def write_recipe(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


BF16 = ml_dtypes.bfloat16
LINEAR = """
merge_method: linear
models:
  - {model: a, parameters: {weight: 3}}
  - {model: b, parameters: {weight: 1}}
"""
