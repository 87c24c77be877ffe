"""Models that cannot be converted, or not without a word: one clear message each."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import lbrx
from lbrx.errors import FormatError, UsageError
from lbrx.files.output.contents import Contents, PlannedTensor
from lbrx.jobs.convert.gguf_to_hf import gguf_to_hf
from lbrx.jobs.convert.hf_to_gguf import hf_to_gguf
from lbrx.jobs.convert.reading import read_contents
from support.tiny_models import tiny_arrays, tiny_config, write_model

NO_TOKENIZER: dict[str, Any] = {"tokenizer.ggml.model": "none"}
TEN = "llama, mistral, mixtral, qwen2, qwen2_moe, qwen3, qwen3_moe, gemma, gemma2, gemma3_text, phi3"


def tiny(model_type: str, **changes: Any) -> Contents:
    config = tiny_config(model_type, **changes)
    arrays = tiny_arrays(config)
    tensors = tuple(PlannedTensor.of(name, lbrx.tensor(values)) for name, values in arrays.items())
    return Contents("safetensors", tensors, config=config)


def convert(contents: Contents) -> Contents:
    return hf_to_gguf(contents, tokenizer_metadata=NO_TOKENIZER)


def with_config(contents: Contents, **changes: Any) -> Contents:
    assert contents.config is not None
    return replace(contents, config={**contents.config, **changes})


def without(contents: Contents, *names: str) -> Contents:
    return replace(contents, tensors=tuple(each for each in contents.tensors if each.name not in names))


@pytest.mark.parametrize("model_type", ["clip", "opt", None])
def test_an_unknown_family_names_those_that_are_known(model_type: str | None) -> None:
    with pytest.raises(UsageError, match=f"model_type of config.json is {model_type!r}.*expected one of {TEN}"):
        convert(with_config(tiny("llama"), model_type=model_type))


def test_a_model_without_config() -> None:
    with pytest.raises(UsageError, match=r"has no config\.json"):
        convert(replace(tiny("llama"), config=None))


def test_an_unknown_family_of_a_gguf_file() -> None:
    with pytest.raises(UsageError, match=r"general.architecture is 'rwkv6'.*expected one of llama, qwen2, qwen2moe"):
        gguf_to_hf(Contents("gguf", (), {"general.architecture": "rwkv6"}))
    with pytest.raises(UsageError, match="'qwen2' with experts"):
        gguf_to_hf(Contents("gguf", (), {"general.architecture": "qwen2", "qwen2.expert_count": 4}))


def test_an_encoder_without_the_config_of_lbrx() -> None:
    with pytest.raises(UsageError, match="has no config of lbrx, without which a bert cannot be converted back"):
        gguf_to_hf(Contents("gguf", (), {"general.architecture": "bert"}))


@pytest.mark.parametrize(
    ("model_type", "name"),
    [
        ("llama", "model.layers.1.mlp.up_proj.weight"),
        ("llama", "lm_head.weight"),
        ("qwen2", "model.layers.0.self_attn.k_proj.bias"),
        ("mixtral", "model.layers.1.block_sparse_moe.experts.2.w3.weight"),
        ("gemma2", "model.norm.weight"),
    ],
)
def test_a_missing_tensor(model_type: str, name: str) -> None:
    with pytest.raises(UsageError, match=f"tensor '{name}' is missing"):
        convert(without(tiny(model_type), name))


def test_a_tensor_that_no_rule_names() -> None:
    contents = tiny("llama")
    extra = PlannedTensor.of("model.layers.0.mlp.extra.weight", lbrx.full((2, 2), 0, "bf16"))
    with pytest.raises(UsageError, match=r"tensor 'model.layers.0.mlp.extra.weight' has no place"):
        convert(replace(contents, tensors=(*contents.tensors, extra)))
    layer = PlannedTensor.of("model.layers.2.input_layernorm.weight", lbrx.full((64,), 0, "bf16"))
    with pytest.raises(UsageError, match=r"tensor 'model.layers.2.input_layernorm.weight' has no place"):
        convert(replace(contents, tensors=(*contents.tensors, layer)))


def test_buffers_are_left_out() -> None:
    contents = tiny("llama")
    extra = PlannedTensor.of("model.layers.0.self_attn.rotary_emb.inv_freq", lbrx.full((8,), 0, "f32"))
    made = convert(replace(contents, tensors=(*contents.tensors, extra)))
    assert len(made.tensors) == len(contents.tensors)


def test_shapes_against_the_config() -> None:
    with pytest.raises(UsageError, match=r"q_proj.weight' has shape \(64, 64\), expected \(128, 64\).*and \d+ more"):
        convert(with_config(tiny("llama"), head_dim=32))
    with pytest.raises(UsageError, match=r"embed_tokens.weight' has shape \(128, 64\), expected \(130, 64\)"):
        convert(with_config(tiny("llama"), vocab_size=130))


@pytest.mark.parametrize(("key", "value"), [("hidden_size", None), ("num_hidden_layers", "2"), ("vocab_size", 0)])
def test_a_config_without_a_number(key: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"config.json: .*'{key}'.*; expected a whole number"):
        convert(with_config(tiny("llama"), **{key: value}))


def test_a_tokenizer_of_another_size() -> None:
    with pytest.raises(UsageError, match="the tokenizer has 3 tokens, but the embedding 128 rows"):
        hf_to_gguf(tiny("llama"), tokenizer_metadata={"tokenizer.ggml.tokens": ["a", "b", "c"]})


def test_a_type_that_is_not_plain() -> None:
    with pytest.raises(UsageError, match="'q4_k' is not a plain type of GGUF; expected one of f32, f16, bf16"):
        hf_to_gguf(tiny("llama"), tokenizer_metadata=NO_TOKENIZER, type_name="q4_k")


def test_integers_are_no_weights() -> None:
    contents = tiny("llama")
    wrong = PlannedTensor.of("lm_head.weight", lbrx.full((128, 64), 0, "i8"))
    tensors = (*without(contents, "lm_head.weight").tensors, wrong)
    with pytest.raises(UsageError, match=r"tensor 'lm_head.weight' is i8; expected floating-point weights"):
        convert(replace(contents, tensors=tensors))


def test_layers_without_experts_are_an_error() -> None:
    with pytest.raises(UsageError, match="experts in every layer only"):
        convert(with_config(tiny("qwen3_moe"), mlp_only_layers=[0]))


def test_an_untied_gemma2_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"llama.cpp has no 'lm_head.weight' for gemma2"):
        convert(tiny("gemma2", tie_word_embeddings=False))


@pytest.mark.parametrize(
    ("model_type", "changes", "expected"),
    [
        ("mistral", {"sliding_window": 32}, "a sliding window of 32, but llama.cpp will use full attention"),
        (
            "qwen3_moe",
            {"norm_topk_prob": False},
            "'norm_topk_prob' is False, but llama.cpp computes as if it were True",
        ),
        ("gemma2", {"query_pre_attn_scalar": 100}, "'query_pre_attn_scalar' is 100, but .* as if it were 32"),
        ("gemma2", {"attn_logit_softcapping": None}, "'attn_logit_softcapping' is not set, but .* as if it were 50"),
    ],
)
def test_what_llama_cpp_computes_in_another_way_is_told(
    model_type: str, changes: dict[str, Any], expected: str
) -> None:
    (warning,) = convert(with_config(tiny(model_type), **changes)).warnings
    assert re.search(expected, warning)
    assert convert(tiny(model_type)).warnings == ()


def test_irregular_layers_are_an_error() -> None:
    kinds = ["full_attention", "sliding_attention"]
    with pytest.raises(UsageError, match="mixes full and sliding attention irregularly"):
        convert(with_config(tiny("gemma3_text"), layer_types=kinds))


def test_a_gguf_file_without_a_number_or_a_tensor() -> None:
    made = convert(tiny("llama"))
    plain = {key: value for key, value in made.metadata.items() if not key.startswith("lbrx.")}
    with pytest.raises(FormatError, match=r"has no 'llama.embedding_length'; expected a whole number"):
        gguf_to_hf(replace(made, metadata={k: v for k, v in plain.items() if k != "llama.embedding_length"}))
    with pytest.raises(UsageError, match=r"tensor 'blk.1.ffn_up.weight' is missing"):
        gguf_to_hf(without(made, "blk.1.ffn_up.weight"))
    extra = PlannedTensor.of("blk.0.extra.weight", lbrx.full((2, 2), 0, "f32"))
    with pytest.raises(UsageError, match=r"tensor 'blk.0.extra.weight' has no place"):
        gguf_to_hf(replace(made, tensors=(*made.tensors, extra)))


@pytest.mark.parametrize("key", ["lbrx.hf.dtype", "lbrx.hf.dtypes"])
def test_broken_keys_of_our_own(key: str) -> None:
    made = convert(tiny("llama"))
    with pytest.raises(FormatError, match="expected"):
        gguf_to_hf(replace(made, metadata={**made.metadata, key: '{"a": "no type"}'}))
    with pytest.raises(FormatError):
        gguf_to_hf(replace(made, metadata={**made.metadata, "lbrx.hf.config": "{"}))


def test_a_directory_without_a_tokenizer_and_a_model_without_a_directory(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no directory with tokenizer files; give tokenizer_metadata"):
        hf_to_gguf(tiny("llama"))
    directory, _ = write_model(tmp_path, "llama")
    with pytest.raises(lbrx.errors.LbrxError, match="tokenizer"):
        hf_to_gguf(read_contents(directory))
