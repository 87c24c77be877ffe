"""Models in MLX's format load in mlx_lm and compute what transformers computes.

Needs an environment of its own, because mlx_lm and mergekit want different versions of transformers: torch, mlx[cpu],
mlx-lm and lbrx[dev].
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import lbrx
from lbrx.files.output.contents import Contents
from lbrx.jobs.convert.hf_to_gguf import hf_to_gguf
from lbrx.jobs.convert.mlx_directory import hf_to_mlx
from lbrx.jobs.convert.mlx_gguf import gguf_to_mlx
from lbrx.jobs.convert.reading import read_contents
from lbrx.models.architectures.mlx_weights import mlx_to_hf, read_mlx
from lbrx.tensors.codecs.mlx import MlxMode, dequantize
from support.movable_codes import CASES, model

mx = pytest.importorskip("mlx.core", reason="needs mlx, which has an environment of its own")
from mlx_lm.utils import load_model  # noqa: E402

Logits = npt.NDArray[np.float32]
TOLERANCE = 1e-3  # of the largest logit
TOKENS = [[1, 5, 9, 2, 77, 31, 64, 8]]
SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 128,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "pad_token_id": 0,
}
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
GEMMA: dict[str, Any] = {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 16}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "rope_theta": 5e5,
    "original_max_position_embeddings": 32,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "llama, rope llama3": ("llama", {"rope_parameters": LLAMA3}),
    "llama, another base": ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mixtral": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2": ("qwen2", {}),
    "qwen2_moe": ("qwen2_moe", {**EXPERTS, "shared_expert_intermediate_size": 64}),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "qwen3_moe": ("qwen3_moe", {**EXPERTS, "head_dim": 32, "norm_topk_prob": True}),
    "gemma2": ("gemma2", GEMMA),
    "gemma3_text": ("gemma3_text", {**GEMMA, "num_hidden_layers": 6}),  # mlx_lm wants a whole period of layers
    "phi3": ("phi3", {}),
    "olmo2": ("olmo2", {}),
}


def write_model(directory: Path, name: str) -> Path:
    """A tiny model made by transformers, in f32."""
    family, settings = MODELS[name]
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**SMALL, **settings})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(directory)
    return directory


def written(contents: Contents, directory: Path) -> Path:
    directory.mkdir()
    lbrx.save(directory / "model.safetensors", {each.name: each.make() for each in contents.tensors}, contents.metadata)
    (directory / "config.json").write_text(json.dumps(contents.config))
    return directory


def transformers_logits(directory: Path) -> Logits:
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        return model.eval()(torch.tensor(TOKENS)).logits[0].numpy()


def mlx_logits(directory: Path) -> Logits:
    model, _ = load_model(directory, strict=True)
    return np.array(model(mx.array(TOKENS)).astype(mx.float32))[0]


def assert_close(found: Logits, expected: Logits) -> None:
    assert np.abs(found - expected).max() < TOLERANCE * np.abs(expected).max()


@pytest.mark.parametrize("name", MODELS)
def test_unquantized(name: str, tmp_path: Path) -> None:
    source = write_model(tmp_path / "hf", name)
    mlx = written(hf_to_mlx(read_contents(source)), tmp_path / "mlx")
    expected = transformers_logits(source)
    assert_close(mlx_logits(mlx), expected)
    back = written(mlx_to_hf(read_mlx(mlx)), tmp_path / "back")
    np.testing.assert_array_equal(transformers_logits(back), expected)


@pytest.mark.parametrize("type_name", ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl", "mxfp4", "nvfp4"])
@pytest.mark.parametrize("name", ["llama", "mixtral", "qwen3_moe"])
def test_gguf_to_mlx(name: str, type_name: str, tmp_path: Path) -> None:
    """Blocks of a GGUF model in mlx_lm, and the values that we say they have in transformers."""
    source = write_model(tmp_path / "hf", name)
    gguf = hf_to_gguf(read_contents(source), tokenizer_metadata={"tokenizer.ggml.model": "none"})
    coded = tuple(
        each.mapped(lambda values: values.quantize(type_name).realize(), type_name=type_name)
        if len(each.shape) > 1 and "gate_inp" not in each.name and each.shape[-1] % 64 == 0
        else each
        for each in gguf.tensors
    )
    mlx = written(gguf_to_mlx(replace(gguf, tensors=coded)), tmp_path / "mlx")
    decoded = mlx_to_hf(read_mlx(mlx))
    exact = tuple(each.mapped(lambda values: values.to("f32"), type_name="f32") for each in decoded.tensors)
    assert_close(mlx_logits(mlx), transformers_logits(written(replace(decoded, tensors=exact), tmp_path / "decoded")))


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("group_size", [32, 64])
def test_weights_of_mlx_are_decoded_as_mlx_does(bits: int, group_size: int) -> None:
    values = np.random.default_rng(0).standard_normal((16, 256)).astype(np.float32)
    weight, scales, biases = mx.quantize(mx.array(values), group_size=group_size, bits=bits)
    expected = np.array(mx.dequantize(weight, scales, biases, group_size=group_size, bits=bits))
    words = lbrx.Tensor(
        lbrx.tensors.coded.Blocks(lbrx.CpuStorage.from_array(np.array(weight)), "u32", tuple(weight.shape))
    )
    parts = [lbrx.tensor(np.array(part)) for part in (scales, biases)]
    found = dequantize(words, *parts, MlxMode("affine", bits, group_size)).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


LATENT: dict[str, Any] = {
    "q_lora_rank": 64,
    "kv_lora_rank": 64,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 64,
    "v_head_dim": 64,
    "head_dim": 16,
}
ROUTED: dict[str, Any] = {
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "head_dim": 32,
}
# What mlx_lm reads and transformers no longer writes.
HUB_KEYS: dict[str, Any] = {
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.5,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "moe_layer_freq": 1,
}
YARN = {
    "type": "yarn",
    "factor": 2.0,
    "original_max_position_embeddings": 64,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
ROUTER_MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "deepseek_v2": (LATENT, {"topk_method": "greedy", "scoring_func": "softmax", "rope_scaling": YARN}),
    "deepseek_v3": (LATENT, {}),
    "glm4_moe": ({}, {"rope_scaling": None}),
    "glm4_moe_lite": (LATENT, {}),
}


@pytest.mark.parametrize("name", ROUTER_MODELS)
def test_routers_that_mlx_lm_does_not_quantize(name: str, tmp_path: Path) -> None:
    """The same layers are quantized as by mlx_lm, and the model loads."""
    from mlx.utils import tree_flatten
    from mlx_lm.utils import quantize_model

    settings, hub_keys = ROUTER_MODELS[name]
    torch.manual_seed(0)
    config = AutoConfig.for_model(name, **{**SMALL, **ROUTED, **settings})
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(tmp_path / "hf")
    path = tmp_path / "hf" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **HUB_KEYS, **hub_keys}))
    original, _ = load_model(tmp_path / "hf", strict=True)
    expected, _ = quantize_model(original, json.loads(path.read_text()), 64, 4)
    lbrx.quantize(tmp_path / "hf", tmp_path / "mlx", to="mlx_4")
    loaded, _ = load_model(tmp_path / "mlx", strict=True)

    def quantized(model: Any) -> set[str]:
        return {key for key, _ in tree_flatten(model.parameters()) if key.endswith(".scales")}

    assert quantized(loaded) == quantized(expected)


@pytest.mark.parametrize("case", [case for case, (_, _, mode) in CASES.items() if mode is not None])
def test_codes_of_quantized_models_that_are_moved(case: str, tmp_path: Path) -> None:
    """mlx_lm loads them, and they have the values of the quantized model."""
    make, _, mode = CASES[case]
    path, plain = model(tmp_path / "m", make)
    lbrx.convert(path, tmp_path / "mlx", format="mlx")
    loaded, _ = load_model(tmp_path / "mlx")
    for number, layer in enumerate(loaded.model.layers):
        for name, part in (("mlp.down_proj", layer.mlp.down_proj), ("self_attn.q_proj", layer.self_attn.q_proj)):
            assert part.mode == mode
            values = mx.dequantize(part.weight, part.scales, None, part.group_size, part.bits, part.mode)
            expected = plain[f"model.layers.{number}.{name}.weight"]
            np.testing.assert_array_equal(np.array(values.astype(mx.float32)), expected)
