"""Two small models that differ like a base model and its fine-tune, and what can be done with them in a few lines.

The models have the names and the config of Llama, random weights in bf16, and 17 million parameters each.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

from lbrx.checkpoint import Checkpoint
from lbrx.creation import evaluate, full, normal
from lbrx.output import save
from lbrx.tensor import Tensor

VOCABULARY = 4096
HIDDEN = 512
INTERMEDIATE = 1408
LAYERS = 4
BASE_SEED = 1
TUNING_SEED = 2
_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_attention_heads": 8,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": VOCABULARY,
}


def llama_shapes() -> dict[str, tuple[int, ...]]:
    """The names and shapes of the tensors of the small model.

    >>> shapes = llama_shapes()
    >>> len(shapes), shapes["model.layers.3.mlp.down_proj.weight"]
    (39, (512, 1408))
    """
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        shapes[f"{prefix}input_layernorm.weight"] = (HIDDEN,)
        for projection in ("q_proj", "k_proj", "v_proj", "o_proj"):
            shapes[f"{prefix}self_attn.{projection}.weight"] = (HIDDEN, HIDDEN)
        shapes[f"{prefix}post_attention_layernorm.weight"] = (HIDDEN,)
        shapes[f"{prefix}mlp.gate_proj.weight"] = (INTERMEDIATE, HIDDEN)
        shapes[f"{prefix}mlp.up_proj.weight"] = (INTERMEDIATE, HIDDEN)
        shapes[f"{prefix}mlp.down_proj.weight"] = (HIDDEN, INTERMEDIATE)
    shapes["model.norm.weight"] = (HIDDEN,)
    shapes["lm_head.weight"] = (VOCABULARY, HIDDEN)
    return shapes


def base_tensors() -> dict[str, Tensor]:
    """The base model: expressions that are computed when they are saved."""
    return {name: _weight(name, shape).to("bf16") for name, shape in llama_shapes().items()}


def _weight(name: str, shape: tuple[int, ...]) -> Tensor:
    if "norm" in name:
        return full(shape, 1.0, "f32")
    return normal(shape, BASE_SEED, name) / math.sqrt(HIDDEN)


def tuned_tensors(base: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The base model with noise added to its matrices, more of it in later layers."""
    return {name: _tuned(name, tensor) for name, tensor in base.items()}


def _tuned(name: str, tensor: Tensor) -> Tensor:
    layer = layer_of(name)
    if layer is None or tensor.ndim == 1:
        return tensor
    return (tensor + normal(tensor.shape, TUNING_SEED, name) * (0.002 * (layer + 1))).to("bf16")


def layer_of(name: str) -> int | None:
    """The layer that a tensor belongs to.

    >>> layer_of("model.layers.3.mlp.up_proj.weight"), layer_of("lm_head.weight")
    (3, None)
    """
    parts = name.split(".")
    return int(parts[2]) if parts[:2] == ["model", "layers"] else None


def write_model(directory: Path, tensors: Mapping[str, Tensor]) -> Path:
    """Write the directory of a model, weights and config.json, and return it."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(_CONFIG, indent=2) + "\n")
    save(directory / "model.safetensors", tensors, {"format": "pt"})
    return directory


@dataclass(frozen=True, slots=True)
class LayerChange:
    """How far the matrices of a layer moved: length of the difference, relative to the length of the base."""

    layer: int
    difference: float
    relative: float


def layer_changes(base: Checkpoint, tuned: Checkpoint) -> list[LayerChange]:
    """The change of every layer. Each tensor of both models is read once: its sums share one pass."""
    squares: dict[int, tuple[float, float]] = {}
    for name, before in base.items():
        layer = layer_of(name)
        if layer is None:
            continue
        delta = tuned[name] - before
        of_delta, of_base = evaluate(delta.dot(delta), before.dot(before))
        total_delta, total_base = squares.get(layer, (0.0, 0.0))
        squares[layer] = (total_delta + float(of_delta), total_base + float(of_base))
    return [
        LayerChange(layer, math.sqrt(of_delta), math.sqrt(of_delta / of_base))
        for layer, (of_delta, of_base) in sorted(squares.items())
    ]


def blended(base: Checkpoint, tuned: Checkpoint, share_of_base: float) -> dict[str, Tensor]:
    """``share * base + (1 - share) * tuned`` for every tensor, rounded to bf16 once."""
    return {
        name: (share_of_base * tensor + (1 - share_of_base) * tuned[name]).to("bf16") for name, tensor in base.items()
    }


def differing_elements(result: Checkpoint, base: Checkpoint, tuned: Checkpoint, share_of_base: float) -> int:
    """How many elements of a blend are not, bit for bit, what NumPy computes."""
    differing = 0
    for name, tensor in result.items():
        before, after = (model[name].numpy().astype(np.float32) for model in (base, tuned))
        expected = np.float32(share_of_base) * before + np.float32(1 - share_of_base) * after
        rounded = expected.astype(ml_dtypes.bfloat16).view(np.uint16)
        differing += int(np.count_nonzero(rounded != tensor.numpy().view(np.uint16)))
    return differing
