"""Mixtures next to mergekit-moe: all four layouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mergekit.scripts.moe import main as mergekit_moe
from safetensors.numpy import load_file
from transformers import AutoConfig, AutoModelForCausalLM

import lbrx
from support.transplant_models import FIRST_TEXT, tokenizer_of

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "max_position_embeddings": 64,
    "head_dim": 16,
    "tie_word_embeddings": False,
}
PROMPTS = {"a": ("the cat sat", "the dog"), "b": ("the end of the road", "there")}
SHARED = "shared_experts: [{source_model: a, residual_scale: 0.5%s}]"
LAYOUTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "mixtral": ("llama", ()),
    "mixtral of mistral": ("mistral", ()),
    "qwen2_moe": ("qwen2", (SHARED % ", positive_prompts: [cat]",)),
    "qwen3_moe": ("qwen3", ()),
    "deepseek": ("llama", ("architecture: deepseek",)),
    "deepseek shared": ("llama", ("architecture: deepseek", SHARED % "")),
}


def make_models(folder: Path, kind: str) -> None:
    tokenizer = tokenizer_of(FIRST_TEXT, 300)
    for seed, name in enumerate(("base", "a", "b", "c")):
        torch.manual_seed(seed)
        ids = {"bos_token_id": 0, "eos_token_id": 0}
        config = AutoConfig.for_model(kind, **SIZES, **ids, vocab_size=tokenizer.get_vocab_size())
        AutoModelForCausalLM.from_config(config).save_pretrained(folder / name)
        tokenizer.save(str(folder / name / "tokenizer.json"))
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>", "bos_token": "<|end|>"}
        (folder / name / "tokenizer_config.json").write_text(json.dumps(settings))


def split(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Tensors with one name per expert, as lbrx writes them; transformers 5 stacks experts."""
    made = {}
    for name, value in tensors.items():
        block, _, part = name.rpartition(".")
        if part not in ("gate_up_proj", "down_proj") or not block.endswith(".experts"):
            made[name] = value
            continue
        for expert, matrix in enumerate(value):
            parts = {"down_proj": matrix}
            if part == "gate_up_proj":
                parts = {"gate_proj": matrix[: len(matrix) // 2], "up_proj": matrix[len(matrix) // 2 :]}
            made |= {f"{block}.{expert}.{key}.weight": each for key, each in parts.items()}
    return made


def plain(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Mixtral under the names that other families have."""
    names = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
    made = {}
    for name, value in tensors.items():
        parts = name.replace("block_sparse_moe", "mlp").split(".")
        made[".".join(names.get(part, part) for part in parts)] = value
    return made


@pytest.mark.parametrize("gate_mode", ["cheap_embed", "hidden", "hidden_avg", "random"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_tensors_are_those_of_mergekit(
    name: str, gate_mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kind, more = LAYOUTS[name]
    make_models(tmp_path, kind)
    is_hidden = gate_mode.startswith("hidden")
    count = 1 if is_hidden else 2  # mergekit also averages the padding of prompts of different lengths
    experts = [
        f"{{source_model: {model}, positive_prompts: {json.dumps(texts[:count])}, residual_scale: {1 + number / 2}}}"
        for number, (model, texts) in enumerate(PROMPTS.items())
    ]
    head = f"base_model: base\ngate_mode: {gate_mode}\ndtype: float32\nexperts: [{', '.join(experts)}]"
    text = "\n".join([head, *more])
    Path("recipe.yml").write_text(text + "\n")
    mergekit_moe(["recipe.yml", "theirs"], standalone_mode=False)
    lbrx.moe("recipe.yml", "ours")
    theirs, ours = (split(plain(load_file(Path(folder) / "model.safetensors"))) for folder in ("theirs", "ours"))
    assert ours.keys() == theirs.keys()
    for tensor, expected in theirs.items():
        if gate_mode == "random" and "gate" in tensor.split(".")[-2] and "proj" not in tensor:
            assert ours[tensor].shape == expected.shape
            continue
        is_bf16 = is_hidden and tensor.endswith("gate.weight")  # mergekit runs the base model in bf16
        limit = (2e-2 if is_bf16 else 1e-6) * np.abs(expected).max()
        np.testing.assert_allclose(ours[tensor], expected, rtol=0, atol=limit, err_msg=tensor)
    settings = [json.loads((Path(folder) / "config.json").read_text()) for folder in ("theirs", "ours")]
    for key in ("model_type", "num_experts_per_tok", "moe_intermediate_size", "n_routed_experts", "n_shared_experts"):
        assert settings[1].get(key) == settings[0].get(key), key
