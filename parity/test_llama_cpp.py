"""Converted models load in llama.cpp, compute what transformers computes, and come back byte by byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from llama_cpp import GGML_TYPE_F32, Llama
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import AutoConfig, AutoModelForCausalLM

import lbrx
from lbrx.jobs.convert.gguf_to_hf import gguf_to_hf
from lbrx.jobs.convert.hf_to_gguf import hf_to_gguf
from lbrx.jobs.convert.reading import read_contents

Logits = npt.NDArray[np.float32]

VOCABULARY = 320
POSITIONS = 40
CONTEXT = 256  # the least that llama.cpp makes
TOLERANCE = 1e-3  # of the largest logit
SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
GEMMA: dict[str, Any] = {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 16}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONG = [1.0 + 0.3 * place for place in range(8)]
SHORT = [1.0 + 0.1 * place for place in range(8)]


def longrope(original_length: int) -> dict[str, Any]:
    """A config whose long factors hold beyond ``original_length``: for llama.cpp by its context, not by the text."""
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "long_factor": LONG, "short_factor": SHORT}
    lengths = {"original_max_position_embeddings": original_length}
    return {**lengths, "max_position_embeddings": 1024, "rope_parameters": {**rope, **lengths}}


# (family, what its config has besides the above)
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, tied, wide heads": ("llama", {"head_dim": 32, "tie_word_embeddings": True}),
    "llama, rope llama3": (
        "llama",
        {"rope_parameters": {**LLAMA3, "rope_theta": 5e5, "original_max_position_embeddings": 32}},
    ),
    "llama, rope linear": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}}),
    "mistral": ("mistral", {"head_dim": 32, "sliding_window": None}),
    "mixtral": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2, rope yarn": (
        "qwen2",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "rope_theta": 1e4,
                "original_max_position_embeddings": 32,
            }
        },
    ),
    "qwen2_moe": ("qwen2_moe", {**EXPERTS, "shared_expert_intermediate_size": 64, "norm_topk_prob": False}),
    "qwen2_moe, tied": (
        "qwen2_moe",
        {**EXPERTS, "shared_expert_intermediate_size": 64, "norm_topk_prob": False, "tie_word_embeddings": True},
    ),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "qwen3_moe": ("qwen3_moe", {**EXPERTS, "head_dim": 32, "norm_topk_prob": True}),
    "gemma2": ("gemma2", {**GEMMA, "num_hidden_layers": 3}),
    "gemma3_text": ("gemma3_text", {**GEMMA, "num_hidden_layers": 7}),
    "gemma3_text, rope linear": (
        "gemma3_text",
        {
            **GEMMA,
            "num_hidden_layers": 6,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
            },
        },
    ),
    "olmo2": ("olmo2", {}),
    "olmo2, tied": ("olmo2", {"tie_word_embeddings": True}),
    "phi3": ("phi3", {"original_max_position_embeddings": 128}),
    "phi3, longrope, short": ("phi3", longrope(original_length=512)),
    "phi3, longrope, long": ("phi3", longrope(original_length=32)),
}


def write_tokenizer(directory: Path) -> None:
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the quick brown fox jumps over the lazy dog and the other brown dogs"] * 3, trainer)
    tokenizer.save(str(directory / "tokenizer.json"))


def random_model(name: str) -> torch.nn.Module:
    family, changes = MODELS[name]
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **{**SMALL, **changes}))
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in parameter_name:
                parameter.add_(0.2 * noise)
            else:
                parameter.copy_(0.15 * noise)
    return model.eval().to(torch.float32)


def llama_logits(path: Path, tokens: list[int]) -> Logits:
    f32_cache = {"type_k": GGML_TYPE_F32, "type_v": GGML_TYPE_F32}
    model = Llama(str(path), n_ctx=CONTEXT, logits_all=True, verbose=False, n_threads=2, **f32_cache)
    model.eval(tokens)
    values = np.array(model.scores[: len(tokens)], np.float32)
    model.close()
    return values


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_the_way_back(name: str, tmp_path: Path) -> None:
    directory = tmp_path / "model"
    model = random_model(name)
    model.save_pretrained(directory)
    write_tokenizer(directory)
    contents = hf_to_gguf(read_contents(directory), type_name="f32")
    assert contents.warnings == ()
    path = tmp_path / "model.gguf"
    lbrx.save(path, {each.name: each.make() for each in contents.tensors}, contents.metadata)

    tokens = np.random.default_rng(3).integers(0, VOCABULARY, POSITIONS).tolist()
    with torch.no_grad():
        expected = model(torch.tensor([tokens])).logits[0].numpy()
    found = llama_logits(path, tokens)
    assert np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max()

    back = gguf_to_hf(read_contents(path))
    original = load_file(directory / "model.safetensors")
    assert set(back.by_name) == set(original)
    for tensor_name, values in original.items():
        assert back.by_name[tensor_name].make().numpy().tobytes() == values.numpy().tobytes(), tensor_name


@pytest.mark.parametrize("name", MODELS)
def test_files_without_own_keys_give_a_model_that_computes_the_same(name: str, tmp_path: Path) -> None:
    directory = tmp_path / "model"
    model = random_model(name)
    model.save_pretrained(directory)
    write_tokenizer(directory)
    made = hf_to_gguf(read_contents(directory))
    kept = {key: value for key, value in made.metadata.items() if not key.startswith("lbrx.")}
    lbrx.save(tmp_path / "model.gguf", {each.name: each.make() for each in made.tensors}, kept)

    back = gguf_to_hf(read_contents(tmp_path / "model.gguf"))
    assert back.config is not None
    again = tmp_path / "again"
    again.mkdir()
    (again / "config.json").write_text(json.dumps(back.config))
    lbrx.save(again / "model.safetensors", {each.name: each.make() for each in back.tensors}, back.metadata)
    loaded = AutoModelForCausalLM.from_pretrained(again, dtype=torch.float32).eval()
    tokens = torch.tensor([np.random.default_rng(3).integers(0, VOCABULARY, POSITIONS).tolist()])
    with torch.no_grad():
        expected, found = model(tokens).logits, loaded(tokens).logits
    assert (found - expected).abs().max() <= TOLERANCE * expected.abs().max()
