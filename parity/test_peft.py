"""Adapters that lbrx extracts load in PEFT and compute what lbrx computes with them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

import lbrx

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 128,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
KINDS: dict[str, dict[str, object]] = {
    "llama": {},
    "qwen2": {},  # with biases
    "gpt2": {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 64},  # with transposed weights
}
TOKENS = torch.tensor([[1, 5, 9, 77, 100, 3, 2, 64]])


def lbrx_command(folder: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "lbrx", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def make_models(kind: str, folder: Path, *, tuned_share: float) -> None:
    """A base, and a fine-tune: the base with a random change of every weight, norms and embeddings included."""
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**SMALL, **KINDS[kind]}))
    base.save_pretrained(folder / "base")
    with torch.no_grad():
        for parameter in base.parameters():
            parameter += tuned_share * parameter.abs().mean() * torch.randn_like(parameter)
    base.save_pretrained(folder / "tuned")


def logits(model: torch.nn.Module) -> np.ndarray:
    with torch.no_grad():
        return model.eval()(TOKENS).logits.double().numpy()


def loaded(path: Path) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)


def applied_by_lbrx(folder: Path) -> np.ndarray:
    """Logits of the base with the adapter, put together by `lbrx merge`."""
    recipe = "{merge_method: passthrough, models: [{model: base+adapter}], dtype: float32}"
    (folder / "recipe.yml").write_text(recipe)
    lbrx_command(folder, "merge", "recipe.yml", "merged", "--quiet")
    return logits(loaded(folder / "merged"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "options",
    [("--rank", "8"), ("--max-error", "0.3"), ("--rank", "4", "--save-modules"), ("--rank", "8", "--dtype", "bf16")],
    ids=["rank", "max-error", "save-modules", "bf16"],
)
def test_peft_computes_the_same_with_an_extracted_adapter(kind: str, options: tuple[str, ...], tmp_path: Path) -> None:
    make_models(kind, tmp_path, tuned_share=0.3)
    lbrx_command(tmp_path, "lora", "extract", "tuned", "base", "adapter", *options)
    adapted = PeftModel.from_pretrained(loaded(tmp_path / "base"), tmp_path / "adapter")
    found = logits(adapted)
    np.testing.assert_allclose(found, applied_by_lbrx(tmp_path), rtol=0, atol=2e-5 * np.abs(found).max())
    assert np.abs(found - logits(loaded(tmp_path / "base"))).max() > 0.01 * np.abs(found).max()


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_fine_tune_of_low_rank_comes_back_whole(kind: str, tmp_path: Path) -> None:
    """What PEFT merges into a base, lbrx extracts again, and PEFT with that gives the merged model's logits."""
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**SMALL, **KINDS[kind]}))
    base.save_pretrained(tmp_path / "base")
    targets = ["c_attn", "c_proj"] if kind == "gpt2" else ["q_proj", "down_proj"]
    trained = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules=targets, init_lora_weights=False))
    merged = trained.merge_and_unload()
    merged.save_pretrained(tmp_path / "tuned")
    lbrx_command(tmp_path, "lora", "extract", "tuned", "base", "adapter", "--max-error", "0.0001")
    ranks = {tensor.shape[0] for name, tensor in lbrx.open(tmp_path / "adapter").items() if "lora_A" in name}
    assert ranks == {4}
    found = logits(PeftModel.from_pretrained(loaded(tmp_path / "base"), tmp_path / "adapter"))
    expected = logits(merged)
    np.testing.assert_allclose(found, expected, rtol=0, atol=5e-4 * np.abs(expected).max())
