"""A small model and PEFT directories for it, with names and configs written out as PEFT writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

import lbrx

BF16 = np.dtype(ml_dtypes.bfloat16)
Arrays = dict[str, npt.NDArray[Any]]

CONFIG = """{
  "alpha_pattern": {},
  "auto_mapping": null,
  "base_model_name_or_path": "models/tiny",
  "bias": "none",
  "fan_in_fan_out": false,
  "inference_mode": true,
  "init_lora_weights": true,
  "layer_replication": null,
  "layers_pattern": null,
  "layers_to_transform": null,
  "loftq_config": {},
  "lora_alpha": 16,
  "lora_dropout": 0.05,
  "megatron_config": null,
  "megatron_core": "megatron.core",
  "modules_to_save": null,
  "peft_type": "LORA",
  "r": 4,
  "rank_pattern": {},
  "revision": null,
  "target_modules": ["q_proj", "v_proj"],
  "task_type": "CAUSAL_LM",
  "use_dora": false,
  "use_rslora": false
}
"""

Q0 = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
V1 = "base_model.model.model.layers.1.self_attn.v_proj.lora_"


def random_array(seed: int, *shape: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def base_arrays() -> Arrays:
    return {
        "model.embed_tokens.weight": random_array(1, 20, 48).astype(BF16),
        "model.layers.0.self_attn.q_proj.weight": random_array(2, 80, 48).astype(BF16),
        "model.layers.0.self_attn.q_proj.bias": random_array(3, 80).astype(BF16),
        "model.layers.0.input_layernorm.weight": random_array(4, 48).astype(BF16),
        "model.layers.1.self_attn.v_proj.weight": random_array(5, 16, 48).astype(BF16),
        "lm_head.weight": random_array(6, 20, 48).astype(BF16),
    }


def model(arrays: Arrays) -> dict[str, lbrx.Tensor]:
    return {name: lbrx.tensor(values, name=name) for name, values in arrays.items()}


def lora_arrays(rank: int = 4) -> Arrays:
    return {
        f"{Q0}A.weight": random_array(11, rank, 48),
        f"{Q0}B.weight": random_array(12, 80, rank),
        f"{V1}A.weight": random_array(13, rank, 48).astype(np.float16),
        f"{V1}B.weight": random_array(14, 16, rank).astype(np.float16),
    }


def write_adapter(directory: Path, arrays: Arrays, **settings: Any) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "adapter_config.json").write_text(json.dumps(json.loads(CONFIG) | settings))
    save_file(arrays, directory / "adapter_model.safetensors", {"format": "pt"})
    return directory


def patched(weight: npt.NDArray[Any], delta: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The sum in f32, rounded to the type of the weight."""
    total: npt.NDArray[Any] = (weight.astype(np.float32) + delta).astype(weight.dtype)
    return total


def assert_one_rounding_apart(actual: npt.NDArray[Any], expected: npt.NDArray[Any]) -> None:
    """Equal up to one unit in the last place of bf16, which sums in another order may cost."""
    np.testing.assert_allclose(actual.astype(np.float32), expected.astype(np.float32), rtol=2**-7, atol=1e-6)
    same = np.mean(actual.view(np.uint16) == expected.view(np.uint16))
    assert same > 0.99
