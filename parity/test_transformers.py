"""Merged models load in transformers and compute."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 4,
    "vocab_size": 128,
    "max_position_embeddings": 64,
}
ARCHITECTURES: dict[str, dict[str, object]] = {
    "llama": {},
    "mistral": {},
    "qwen2": {},
    "qwen3": {"head_dim": 16},
    "gemma": {"head_dim": 16},
    "gemma2": {"head_dim": 16},
    "gemma3_text": {"head_dim": 16},
    "phi3": {"pad_token_id": 0},
    "olmo2": {},
    "mixtral": {"num_local_experts": 2},
    "qwen2_moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
    },
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16},
    "stablelm": {},
    "gpt_neox": {},
    "gpt2": {"n_embd": 64, "n_head": 4, "n_layer": 4, "n_positions": 64},
    "falcon": {"new_decoder_architecture": False, "multi_query": True},
}
TIES = """
merge_method: ties
models:
  - {model: a, parameters: {weight: 0.6, density: 0.5}}
  - {model: b, parameters: {weight: 0.4, density: 0.7}}
base_model: base
dtype: float32
"""
STACK = """
merge_method: passthrough
slices:
  - sources: [{model: a, layer_range: [0, 3]}]
  - sources: [{model: b, layer_range: [1, 4]}]
dtype: float32
"""


def make(kind: str, folder: Path) -> None:
    for seed, name in enumerate(("base", "a", "b")):
        torch.manual_seed(seed)
        config = AutoConfig.for_model(kind, **{**SMALL, **ARCHITECTURES[kind]})
        AutoModelForCausalLM.from_config(config).save_pretrained(folder / name)


@pytest.mark.parametrize(("recipe", "layers"), [(TIES, 4), (STACK, 6)], ids=["ties", "stack"])
@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_a_merged_model_gives_finite_logits(kind: str, recipe: str, layers: int, tmp_path: Path) -> None:
    make(kind, tmp_path)
    (tmp_path / "recipe.yml").write_text(recipe)
    command = [sys.executable, "-m", "lbrx", "merge", "recipe.yml", "out", "--quiet"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    model, report = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert layers in (config.get("num_hidden_layers"), config.get("n_layer"))
    with torch.no_grad():
        logits = model(torch.arange(10)[None]).logits
    assert torch.isfinite(logits).all()
