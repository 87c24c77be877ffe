"""The tensors of GGUF files against NumPy, their types, and the key-values that llama.cpp reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest

import lbrx
from lbrx.files.formats.gguf_values import GgufMetadata
from lbrx.files.output.contents import Contents, PlannedTensor
from lbrx.jobs.convert.gguf_to_hf import gguf_to_hf
from lbrx.jobs.convert.hf_to_gguf import hf_to_gguf
from lbrx.jobs.convert.reading import read_contents
from lbrx.models.architectures.records import Decoder, Norm, Rope
from lbrx.models.architectures.table import all_families
from lbrx.tensors.expr import Stored
from support.tiny_models import MODEL_TYPES, tiny_arrays, tiny_config, write_model

Floats = npt.NDArray[np.float32]
NO_TOKENIZER: dict[str, Any] = {"tokenizer.ggml.model": "none"}


def in_memory(model_type: str, type_name: str = "bf16", **changes: Any) -> tuple[Contents, dict[str, Any]]:
    """A tiny model that lies in memory, and its weights."""
    config = tiny_config(model_type, **changes)
    arrays = tiny_arrays(config, type_name)
    tensors = tuple(PlannedTensor.of(name, lbrx.tensor(values)) for name, values in arrays.items())
    return Contents("safetensors", tensors, config=config), arrays


def converted(model_type: str, type_name: str = "bf16", **changes: Any) -> tuple[Contents, dict[str, Any]]:
    contents, arrays = in_memory(model_type, type_name, **changes)
    return hf_to_gguf(contents, tokenizer_metadata=NO_TOKENIZER), arrays


def values(contents: Contents, name: str) -> Floats:
    array: Floats = contents.by_name[name].make().numpy().astype(np.float32)
    return array


def paired(weights: Any, heads: int) -> Floats:
    """Halves of each head interleaved, written as a loop."""
    rows = weights.shape[0] // heads
    out = np.empty(weights.shape, np.float32)
    for head in range(heads):
        for half in range(2):
            for place in range(rows // 2):
                out[head * rows + 2 * place + half] = weights[head * rows + half * (rows // 2) + place]
    return out


@pytest.mark.parametrize("model_type", ["llama", "mistral", "mixtral"])
def test_rows_of_queries_and_keys_are_interleaved(model_type: str) -> None:
    made, arrays = converted(model_type, attention_bias=True)
    for layer in range(2):
        place = f"model.layers.{layer}.self_attn."
        for part in ("weight", "bias"):
            query, key = (arrays[f"{place}{name}_proj.{part}"] for name in "qk")
            np.testing.assert_array_equal(values(made, f"blk.{layer}.attn_q.{part}"), paired(query, 4))
            np.testing.assert_array_equal(values(made, f"blk.{layer}.attn_k.{part}"), paired(key, 2))
            unchanged = arrays[f"{place}v_proj.{part}"].astype(np.float32)
            np.testing.assert_array_equal(values(made, f"blk.{layer}.attn_v.{part}"), unchanged)


def test_interleaving_is_a_view_of_the_file(tmp_path: Path) -> None:
    directory, _ = write_model(tmp_path, "llama")
    made = hf_to_gguf(read_contents(directory), tokenizer_metadata=NO_TOKENIZER)
    query = made.by_name["blk.0.attn_q.weight"].make()
    assert query.is_view
    back = gguf_to_hf(made).by_name["model.layers.0.self_attn.q_proj.weight"].make()
    assert back.is_view


@pytest.mark.parametrize("model_type", ["qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gemma2", "gemma3_text", "olmo2"])
def test_other_families_keep_the_order_of_rows(model_type: str) -> None:
    made, arrays = converted(model_type)
    for name in "qk":
        expected = arrays[f"model.layers.1.self_attn.{name}_proj.weight"].astype(np.float32)
        np.testing.assert_array_equal(values(made, f"blk.1.attn_{name}.weight"), expected)


def test_phi3_keeps_its_joined_matrices() -> None:
    made, arrays = converted("phi3")
    pairs = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj", "ffn_down": "mlp.down_proj"}
    for own, theirs in pairs.items():
        expected = arrays[f"model.layers.0.{theirs}.weight"].astype(np.float32)
        np.testing.assert_array_equal(values(made, f"blk.0.{own}.weight"), expected)


@pytest.mark.parametrize("model_type", ["gemma2", "gemma3_text"])
def test_one_is_added_to_every_norm_of_gemma(model_type: str) -> None:
    made, arrays = converted(model_type)
    pairs = {
        "blk.0.attn_norm.weight": "model.layers.0.input_layernorm.weight",
        "blk.0.post_attention_norm.weight": "model.layers.0.post_attention_layernorm.weight",
        "blk.0.ffn_norm.weight": "model.layers.0.pre_feedforward_layernorm.weight",
        "blk.0.post_ffw_norm.weight": "model.layers.0.post_feedforward_layernorm.weight",
        "output_norm.weight": "model.norm.weight",
    }
    if model_type == "gemma3_text":
        pairs |= {f"blk.1.attn_{n}_norm.weight": f"model.layers.1.self_attn.{n}_norm.weight" for n in "qk"}
    for own, theirs in pairs.items():
        np.testing.assert_array_equal(values(made, own), arrays[theirs].astype(np.float32) + 1)
    assert "output.weight" not in made.by_name


@pytest.mark.parametrize(
    ("model_type", "template", "parts"),
    [
        ("mixtral", "block_sparse_moe.experts.{}.{}.weight", ("w1", "w3", "w2")),
        ("qwen2_moe", "mlp.experts.{}.{}.weight", ("gate_proj", "up_proj", "down_proj")),
        ("qwen3_moe", "mlp.experts.{}.{}.weight", ("gate_proj", "up_proj", "down_proj")),
    ],
)
def test_experts_are_stacked_without_a_copy_in_memory(model_type: str, template: str, parts: tuple[str, ...]) -> None:
    made, arrays = converted(model_type)
    for own, theirs in zip(("gate", "up", "down"), parts, strict=True):
        names = [f"model.layers.1.{template.format(expert, theirs)}" for expert in range(4)]
        stack = made.by_name[f"blk.1.ffn_{own}_exps.weight"]
        assert not isinstance(stack.make().expr, Stored)
        expected = np.stack([arrays[name] for name in names])
        assert stack.shape == expected.shape
        np.testing.assert_array_equal(stack.make().numpy(), expected)
    assert made.by_name["blk.0.ffn_gate_inp.weight"].type_name == "f32"


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_vectors_norms_and_routers_are_f32_and_matrices_keep_their_type(model_type: str) -> None:
    made, _ = converted(model_type)
    for each in made.tensors:
        is_small = len(each.shape) == 1 or "ffn_gate_inp" in each.name
        assert each.type_name == ("f32" if is_small else "bf16"), each.name


@pytest.mark.parametrize("type_name", ["f16", "f32"])
def test_type_name_is_that_of_matrices(type_name: str) -> None:
    contents, arrays = in_memory("llama")
    made = hf_to_gguf(contents, tokenizer_metadata=NO_TOKENIZER, type_name=type_name)
    assert made.by_name["blk.0.ffn_up.weight"].type_name == type_name
    expected = arrays["model.layers.0.mlp.up_proj.weight"].astype(np.float32)
    np.testing.assert_allclose(values(made, "blk.0.ffn_up.weight"), expected, rtol=1e-3, atol=1e-7)
    assert made.metadata["general.file_type"] == {"f16": 1, "f32": 0}[type_name]


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_names_are_those_of_gguf_py(model_type: str) -> None:
    made, arrays = converted(model_type)
    architecture = next(
        key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == made.metadata["general.architecture"]
    )
    table = gguf.get_tensor_name_map(architecture, 2)
    joined = {"w1": "layers.{}.feed_forward.experts.w1", "w2": "layers.{}.feed_forward.experts.w2"}
    joined["w3"] = "layers.{}.feed_forward.experts.w3"
    expected = set()
    for name in arrays:
        parts = name.split(".")
        if "experts" in parts and "block_sparse_moe" in parts:
            name = joined[parts[-2]].format(parts[2]) + ".weight"
        elif "experts" in parts:
            name = ".".join(part for place, part in enumerate(parts) if place != parts.index("experts") + 1)
        expected.add(table.get_name(name, try_suffixes=(".weight", ".bias")))
    assert {each.name for each in made.tensors} == expected


def test_key_values_of_llama() -> None:
    made, _ = converted("llama")
    assert isinstance(made.metadata, GgufMetadata)
    expected = {
        "general.architecture": ("llama", "str"),
        "general.type": ("model", "str"),
        "general.name": ("model", "str"),
        "general.size_label": ("78K", "str"),
        "general.file_type": (32, "u32"),
        "general.quantization_version": (2, "u32"),
        "llama.block_count": (2, "u32"),
        "llama.context_length": (256, "u32"),
        "llama.embedding_length": (64, "u32"),
        "llama.feed_forward_length": (96, "u32"),
        "llama.attention.head_count": (4, "u32"),
        "llama.attention.head_count_kv": (2, "u32"),
        "llama.attention.key_length": (16, "u32"),
        "llama.attention.value_length": (16, "u32"),
        "llama.attention.layer_norm_rms_epsilon": (1e-5, "f32"),
        "llama.vocab_size": (128, "u32"),
        "llama.rope.dimension_count": (16, "u32"),
        "llama.rope.freq_base": (10000.0, "f32"),
        "tokenizer.ggml.model": ("none", "str"),
    }
    found = {key: (made.metadata[key], made.metadata.type_of(key)) for key in made.metadata if "lbrx." not in key}
    assert found == expected


@pytest.mark.parametrize(
    ("model_type", "expected"),
    [
        ("mixtral", {"llama.expert_count": 4, "llama.expert_used_count": 2, "general.size_label": "4x79K"}),
        (
            "qwen2_moe",
            {"qwen2moe.expert_feed_forward_length": 32, "qwen2moe.expert_shared_feed_forward_length": 64},
        ),
        ("qwen3_moe", {"qwen3moe.expert_feed_forward_length": 32, "qwen3moe.attention.key_length": 32}),
        (
            "gemma2",
            {
                "gemma2.attention.sliding_window": 64,
                "gemma2.attn_logit_softcapping": 50.0,
                "gemma2.final_logit_softcapping": 30.0,
            },
        ),
        ("gemma3_text", {"gemma3.attention.sliding_window": 64, "gemma3.rope.freq_base_swa": 5000.0}),
        ("phi3", {"phi3.attention.sliding_window": 0, "phi3.rope.scaling.original_context_length": 256}),
    ],
)
def test_key_values_of_other_families(model_type: str, expected: dict[str, Any]) -> None:
    made, _ = converted(model_type)
    assert {key: made.metadata[key] for key in expected} == expected
    assert not any("softcapping" in key for key in made.metadata) or model_type == "gemma2"
    assert json.loads(made.metadata["lbrx.hf.config"])["model_type"] == model_type


def test_a_period_of_full_attention_that_llama_cpp_does_not_expect_is_told() -> None:
    kinds = ["sliding_attention", "full_attention"]
    made, _ = converted("gemma3_text", layer_types=kinds)
    assert made.metadata["gemma3.attention.sliding_window_pattern"] == 2
    assert plain_config(made)["layer_types"] == kinds
    usual, _ = converted("gemma3_text", layer_types=["sliding_attention"] * 2)
    assert "gemma3.attention.sliding_window_pattern" not in usual.metadata
    assert plain_config(usual)["layer_types"] == ["sliding_attention"] * 2
    full, _ = converted("gemma3_text", layer_types=["full_attention"] * 2)
    assert "gemma3.attention.sliding_window" not in full.metadata
    assert plain_config(full)["layer_types"] == ["full_attention"] * 2


def test_a_list_of_the_layers_with_a_window() -> None:
    made, _ = converted("gemma2")
    key = "gemma2.attention.sliding_window_pattern"
    marked = replace(made, metadata={**made.metadata, key: np.array([False, True])})
    assert plain_config(marked)["layer_types"] == ["full_attention", "sliding_attention"]


def plain_config(contents: Contents) -> Mapping[str, Any]:
    """The config.json that key-values give without the stored one."""
    kept = {key: value for key, value in contents.metadata.items() if not key.startswith("lbrx.")}
    config = gguf_to_hf(replace(contents, metadata=kept)).config
    assert config is not None
    return config


def test_a_tied_head_is_left_out_or_copied() -> None:
    assert "output.weight" not in converted("qwen2")[0].by_name
    made, arrays = converted("qwen2_moe", tie_word_embeddings=True)
    expected = arrays["model.embed_tokens.weight"].astype(np.float32)
    np.testing.assert_array_equal(values(made, "output.weight"), expected)


@pytest.mark.parametrize("prefixes", [("language_model.model.", "language_model."), ("model.language_model.", "")])
def test_the_language_model_of_a_multimodal_gemma3(prefixes: tuple[str, str]) -> None:
    contents, arrays = in_memory("gemma3_text")
    inner, outer = prefixes
    renamed = [
        each.renamed(inner + each.name.removeprefix("model.") if each.name.startswith("model.") else outer + each.name)
        for each in contents.tensors
    ]
    vision = PlannedTensor.of("vision_tower.vision_model.w.weight", lbrx.full((2, 2), 0, "bf16"))
    assert contents.config is not None
    config = {"model_type": "gemma3", "torch_dtype": "bfloat16", "text_config": contents.config, "vision_config": {}}
    made = hf_to_gguf(Contents("safetensors", (*renamed, vision), config=config), tokenizer_metadata=NO_TOKENIZER)
    assert made.metadata["general.architecture"] == "gemma3"
    assert made.warnings == ("1 tensors of the vision model are left out: only the language model is converted",)
    back = gguf_to_hf(made)
    assert back.config is not None
    assert back.config["architectures"] == ["Gemma3ForCausalLM"]
    assert "vision_config" not in back.config
    assert set(back.by_name) == set(arrays)


def test_every_family_has_a_default_for_what_configs_leave_out() -> None:
    for family in all_families():
        if family.gguf is not None and not family.gguf.is_encoder:
            decoder = family.decoder or Decoder()
            needed = {"max_position_embeddings"}
            if isinstance(decoder.norm, Norm) and decoder.norm.epsilon.isidentifier():
                needed.add(decoder.norm.epsilon)
            needed |= {"rope_theta"} if isinstance(decoder.positions, Rope) else set()
            assert needed <= set(family.defaults), family.name


@pytest.mark.parametrize(("type_name", "expected"), [("f8_e4m3", "bf16"), ("f64", "f32"), ("f16", "f16")])
def test_types_that_llama_cpp_cannot_compute_with_are_widened(type_name: str, expected: str) -> None:
    contents, _ = in_memory("llama")
    first, *rest = contents.tensors
    narrow = PlannedTensor.of(first.name, first.make().to(type_name))
    made = hf_to_gguf(replace(contents, tensors=(narrow, *rest)), tokenizer_metadata=NO_TOKENIZER)
    assert made.tensors[0].type_name == expected


@pytest.mark.parametrize("shape", [(-1,), (1, 1, -1)])
def test_shapes_that_differ_by_ones_are_restored(shape: tuple[int, ...]) -> None:
    made, arrays = converted("qwen2_moe")
    gate = made.by_name["blk.0.ffn_gate_inp_shexp.weight"]
    other = PlannedTensor.of(gate.name, gate.make().reshape(shape))
    rest = [each for each in made.tensors if each.name != gate.name]
    restored = gguf_to_hf(replace(made, tensors=(*rest, other))).by_name["model.layers.0.mlp.shared_expert_gate.weight"]
    expected = arrays["model.layers.0.mlp.shared_expert_gate.weight"]
    assert restored.make().shape == expected.shape
    np.testing.assert_array_equal(restored.make().to("f32").numpy(), expected.astype(np.float32))
