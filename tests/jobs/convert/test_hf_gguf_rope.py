"""Rotary embeddings: factors as tensors, scaling as key-values, and configs from both."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lbrx
from lbrx.errors import UsageError
from lbrx.files.output.contents import Contents
from lbrx.jobs.convert.gguf_to_hf import gguf_to_hf
from lbrx.jobs.convert.hf_to_gguf import hf_to_gguf
from lbrx.jobs.convert.reading import read_contents
from support.tiny_models import write_model

NO_TOKENIZER: dict[str, Any] = {"tokenizer.ggml.model": "none"}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def converted(directory: Path, model_type: str, **changes: Any) -> Contents:
    return hf_to_gguf(read_contents(write_model(directory, model_type, **changes)[0]), tokenizer_metadata=NO_TOKENIZER)


def without_own_keys(contents: Contents) -> Contents:
    kept = {key: value for key, value in contents.metadata.items() if not key.startswith("lbrx.")}
    return Contents("gguf", contents.tensors, kept)


def scaling(contents: Contents) -> dict[str, Any]:
    return {key.rpartition(".")[2]: value for key, value in contents.metadata.items() if ".rope.scaling." in key}


def expected_llama3_factors(head: int, theta: float) -> list[float]:
    factors = []
    for pair in range(head // 2):
        wave = 2 * math.pi * theta ** (2 * pair / head)
        if wave < 8192 / 4:
            factors.append(1.0)
        elif wave > 8192:
            factors.append(32.0)
        else:
            smooth = (8192 / wave - 1) / 3
            factors.append(1 / ((1 - smooth) / 32 + smooth))
    return factors


@pytest.mark.parametrize("model_type", ["llama", "mistral", "mixtral"])
def test_llama3_becomes_a_tensor_of_factors(tmp_path: Path, model_type: str) -> None:
    made = converted(tmp_path, model_type, rope_theta=500000.0, head_dim=64, rope_scaling=LLAMA3)
    found = made.by_name["rope_freqs.weight"].make()
    assert found.type_name == "f32"
    np.testing.assert_allclose(found.numpy(), expected_llama3_factors(64, 5e5), rtol=1e-6)
    assert scaling(made) == {}
    back = gguf_to_hf(without_own_keys(made))
    assert back.config is not None
    assert back.config["rope_scaling"] == LLAMA3
    assert "rope_freqs.weight" not in back.by_name


def test_factors_that_are_not_those_of_llama3_are_told(tmp_path: Path) -> None:
    made = converted(tmp_path, "llama", head_dim=64, rope_scaling={**LLAMA3, "high_freq_factor": 7.0})
    back = gguf_to_hf(without_own_keys(made))
    assert back.config is not None
    assert back.config["rope_scaling"] is None
    assert "rope_freqs.weight does not match Llama 3" in back.warnings[0]


@pytest.mark.parametrize("is_new", [False, True])
def test_linear_scaling(tmp_path: Path, is_new: bool) -> None:
    values = {"rope_type": "linear", "factor": 4.0}
    changes = {"rope_parameters": {**values, "rope_theta": 20000.0}} if is_new else {"rope_scaling": values}
    made = converted(tmp_path, "qwen3", **changes)
    assert scaling(made) == {"type": "linear", "factor": 4.0}
    assert made.metadata["qwen3.rope.freq_base"] == (20000.0 if is_new else 10000.0)
    back = gguf_to_hf(without_own_keys(made))
    assert back.config is not None
    assert back.config["rope_scaling"] == values


def test_yarn(tmp_path: Path) -> None:
    values = {"rope_type": "yarn", "factor": 2.5, "original_max_position_embeddings": 128, "beta_fast": 16.0}
    made = converted(tmp_path, "qwen2", rope_scaling=values)
    assert scaling(made) == {"type": "yarn", "factor": 2.5, "original_context_length": 128, "yarn_beta_fast": 16.0}
    back = gguf_to_hf(without_own_keys(made))
    assert back.config is not None
    assert back.config["rope_scaling"] == values


def test_longrope_becomes_two_tensors(tmp_path: Path) -> None:
    long, short = [1.0 + 0.5 * place for place in range(8)], [1.0 + 0.25 * place for place in range(8)]
    values = {"type": "longrope", "long_factor": long, "short_factor": short}
    lengths = {"max_position_embeddings": 1024, "original_max_position_embeddings": 64}
    made = converted(tmp_path, "phi3", rope_scaling=values, **lengths)
    np.testing.assert_array_equal(made.by_name["rope_factors_long.weight"].make().numpy(), long)
    np.testing.assert_array_equal(made.by_name["rope_factors_short.weight"].make().numpy(), short)
    factor = math.sqrt(1 + math.log(16) / math.log(64))
    assert scaling(made) == {"original_context_length": 64, "attn_factor": pytest.approx(factor)}
    lbrx.save(tmp_path / "a.gguf", {each.name: each.make() for each in made.tensors}, made.metadata)
    back = gguf_to_hf(without_own_keys(read_contents(tmp_path / "a.gguf")))
    assert back.config is not None
    assert back.config["rope_scaling"] == values
    assert {key: back.config[key] for key in lengths} == lengths


def test_factors_of_the_wrong_number_are_an_error(tmp_path: Path) -> None:
    values = {"type": "longrope", "long_factor": [1.0] * 8, "short_factor": [1.0] * 7}
    with pytest.raises(UsageError, match=r"config.json: rope_scaling: 'short_factor' has 7 values; expected 8"):
        converted(tmp_path, "phi3", rope_scaling=values)


def test_rotations_of_full_and_sliding_layers(tmp_path: Path) -> None:
    rope = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
    }
    made = converted(tmp_path, "gemma3_text", rope_parameters=rope)
    assert made.metadata["gemma3.rope.freq_base"] == 1e6
    assert made.metadata["gemma3.rope.freq_base_swa"] == 2e4
    assert scaling(made) == {"type": "linear", "factor": 8.0}
    back = gguf_to_hf(without_own_keys(made))
    assert back.config is not None
    assert (back.config["rope_theta"], back.config["rope_local_base_freq"]) == (1e6, 2e4)


@pytest.mark.parametrize(("model_type", "rope_type"), [("qwen2", "llama3"), ("llama", "longrope"), ("phi3", "yarn")])
def test_rotations_that_llama_cpp_does_not_have_are_errors(tmp_path: Path, model_type: str, rope_type: str) -> None:
    with pytest.raises(UsageError, match=f"config.json: rope type '{rope_type}' is not one that llama.cpp has"):
        converted(tmp_path, model_type, rope_scaling={"rope_type": rope_type, "factor": 2.0})


def test_dynamic_scaling_is_told(tmp_path: Path) -> None:
    made = converted(tmp_path, "llama", rope_scaling={"type": "dynamic", "factor": 2.0})
    assert "rope type 'dynamic' is not in llama.cpp" in made.warnings[0]
    assert scaling(made) == {}
