"""Adapters in MLX's format: mlx_lm computes with them what lbrx merges.

Needs the environment of ``test_mlx.py``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import lbrx

mx = pytest.importorskip("mlx.core", reason="needs mlx, which has an environment of its own")
from mlx.utils import tree_flatten  # noqa: E402
from mlx_lm.tuner.utils import linear_to_lora_layers, load_adapters  # noqa: E402
from mlx_lm.utils import load_model  # noqa: E402

TOKENS = [[1, 5, 9, 2, 77, 31, 64, 8]]
SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 128,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
}
EXPERTS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
DENSE = ("self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj")
KINDS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "llama": ({}, DENSE),
    "qwen3": ({"head_dim": 16}, DENSE),
    "qwen3_moe": ({"head_dim": 16, **EXPERTS}, ("self_attn.q_proj", *(f"mlp.experts.{e}.up_proj" for e in range(4)))),
}


def make_base(folder: Path, kind: str) -> Path:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**SMALL, **KINDS[kind][0]}))
    model.save_pretrained(folder / "base")
    return folder / "base"


def make_adapter(base: Path, folder: Path, parts: tuple[str, ...], ranks: tuple[int, int] = (4, 4)) -> Path:
    """An adapter of PEFT; its second layer may have another rank."""
    random, factors, model = np.random.default_rng(1), {}, lbrx.open(base)
    for layer, rank in enumerate(ranks):
        for part in parts:
            name = f"model.layers.{layer}.{part}"
            rows, columns = model[f"{name}.weight"].shape
            for key, shape in (("A", (rank, columns)), ("B", (rows, rank))):
                factors[f"base_model.model.{name}.lora_{key}.weight"] = (0.1 * random.standard_normal(shape)).astype(
                    np.float32
                )
    (folder / "peft").mkdir()
    lbrx.save(folder / "peft" / "adapter_model.safetensors", factors)
    pattern = {f"layers.1.{part}": ranks[1] for part in parts} if len(set(ranks)) > 1 else {}
    config = {"peft_type": "LORA", "r": ranks[0], "lora_alpha": 8, "rank_pattern": pattern}
    (folder / "peft" / "adapter_config.json").write_text(json.dumps(config))
    return folder / "peft"


def by_transformers(path: Path) -> np.ndarray:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(torch.tensor(TOKENS)).logits[0].numpy()


def by_mlx(model: Any) -> np.ndarray:
    return np.array(model(mx.array(TOKENS))[0].astype(mx.float32))


def assert_equal(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3 * np.abs(expected).max())


@pytest.mark.parametrize("ranks", [(4, 4), (4, 6)])
@pytest.mark.parametrize("kind", KINDS)
def test_mlx_computes_what_lbrx_merges(kind: str, ranks: tuple[int, int], tmp_path: Path) -> None:
    base = make_base(tmp_path, kind)
    adapter = make_adapter(base, tmp_path, KINDS[kind][1], ranks)
    lbrx.merge_lora(base, adapter, tmp_path / "merged")
    expected = by_transformers(tmp_path / "merged")
    assert np.abs(expected - by_transformers(base)).max() > 0.05 * np.abs(expected).max()
    lbrx.convert_lora(adapter, tmp_path / "mlx", format="mlx")
    lbrx.convert(base, tmp_path / "mlx-base", format="mlx")
    assert_equal(by_mlx(load_adapters(load_model(tmp_path / "mlx-base")[0], str(tmp_path / "mlx"))), expected)


def test_lbrx_reads_an_adapter_of_mlx(tmp_path: Path) -> None:
    base = make_base(tmp_path, "llama")
    model = load_model(base)[0]
    parameters = {"rank": 4, "scale": 3.0, "dropout": 0.0, "keys": list(DENSE)}
    linear_to_lora_layers(model, 2, parameters)
    weights = {}
    for name, value in tree_flatten(model.parameters()):
        if name.endswith(("lora_a", "lora_b")):
            weights[name] = 0.1 * mx.random.normal(value.shape)
    model.load_weights(list(weights.items()), strict=False)
    (tmp_path / "mlx").mkdir()
    mx.save_safetensors(str(tmp_path / "mlx" / "adapters.safetensors"), weights)
    settings = {"fine_tune_type": "lora", "num_layers": 2, "lora_parameters": parameters}
    (tmp_path / "mlx" / "adapter_config.json").write_text(json.dumps(settings))
    lbrx.merge_lora(base, tmp_path / "mlx", tmp_path / "merged")
    assert_equal(by_transformers(tmp_path / "merged"), by_mlx(model))
