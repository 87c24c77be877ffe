"""Opening models: what configs say, and what is wrong with those that cannot be run."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lbrx
from lbrx.errors import FormatError, ShapeError, TensorNotFound, UsageError
from lbrx.memory.budget import budget, set_budget
from lbrx.memory.resident import resident_window
from lbrx.models.inference import LanguageModel, open_model
from lbrx.models.inference.opening import spec_of_gguf
from lbrx.models.inference.spec import ModelSpec, spec_of_config
from lbrx.tensors.rope import RopeConfig
from support.tiny_decoders import VOCABULARY, tiny_arrays, tiny_config, tiny_shapes, write_tiny


def tiny_model(folder: Path, **changes: Any) -> LanguageModel:
    config = tiny_config("llama", **changes)
    return open_model(write_tiny(folder, config, tiny_arrays(config)))


@pytest.mark.parametrize(("limit", "is_kept"), [("1GiB", True), ("1KiB", False)])
def test_weights_stay_mapped_while_the_model_exists_if_they_fit(tmp_path: Path, limit: str, is_kept: bool) -> None:
    gc.collect()  # models of earlier tests
    usual, before = budget().limit_bytes, resident_window.limit_bytes
    path = write_tiny(tmp_path, (config := tiny_config("llama")), tiny_arrays(config))
    set_budget(limit)
    try:
        model = open_model(path)
    finally:
        set_budget(usual)
    assert resident_window.limit_bytes - before == (2 * lbrx.open(path).nbytes if is_kept else 0)
    del model
    gc.collect()
    assert resident_window.limit_bytes == before


# -- what a config says ------------------------------------------------------------------------------------------------


def test_windows_come_from_the_list_of_layers_or_the_rule_of_the_family() -> None:
    def windows(model_type: str, **changes: Any) -> list[int | None]:
        config = tiny_config(model_type, **changes)
        if "layer_types" not in changes:
            del config["layer_types"]
        return [layer.window for layer in spec_of_config(config).layers]

    assert windows("mistral", sliding_window=None) == [None, None, None]
    assert windows("mistral", sliding_window=7) == [7, 7, 7]
    assert windows("gemma2") == [5, None, 5]
    assert windows("gemma3_text", num_hidden_layers=7) == [5, 5, 5, 5, 5, None, 5]
    assert windows("gemma3_text", sliding_window_pattern=2) == [5, None, 5]
    assert windows("qwen2", sliding_window=9, max_window_layers=2) == [None, None, None]
    assert windows("qwen2", sliding_window=9, max_window_layers=2, use_sliding_window=True) == [None, None, 9]
    listed = ["full_attention", "full_attention", "sliding_attention"]
    assert windows("gemma2", layer_types=listed) == [None, None, 5]


def test_positions_are_read_from_both_kinds_of_config() -> None:
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
    older = tiny_config("llama", rope_theta=5e5, rope_scaling={"rope_type": "llama3", **scaling})
    newer = tiny_config("llama", rope_parameters={"rope_theta": 5e5, "rope_type": "llama3", **scaling})
    del newer["rope_theta"]
    expected = RopeConfig(5e5, 16, "llama3", factor=8.0, original_context=32)
    assert [spec_of_config(config).layers[0].rope for config in (older, newer)] == [expected, expected]


def test_gemma_3_stretches_the_positions_of_full_layers_only() -> None:
    config = tiny_config("gemma3_text", rope_theta=1e6, rope_scaling={"rope_type": "linear", "factor": 8.0})
    local, full, _ = (layer.rope for layer in spec_of_config(config).layers)
    assert (local.theta, local.rope_type) == (100.0, "default")
    assert (full.theta, full.rope_type, full.factor) == (1e6, "linear", 8.0)


def test_the_language_model_of_a_larger_config_is_found(tmp_path: Path) -> None:
    config = tiny_config("gemma3_text")
    arrays = {f"language_model.{name}": array for name, array in tiny_arrays(config).items()}
    inner = open_model(write_tiny(tmp_path / "text", config, tiny_arrays(config)))
    outer = open_model(write_tiny(tmp_path / "outer", {"model_type": "gemma3", "text_config": config}, arrays))
    np.testing.assert_array_equal(outer.logits([1, 2, 3]), inner.logits([1, 2, 3]))


def test_metadata_of_gguf_files_says_the_same_as_a_config() -> None:
    keys = {
        "block_count": 6,
        "embedding_length": 64,
        "feed_forward_length": 96,
        "context_length": 512,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.key_length": 32,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.sliding_window": 5,
        "rope.freq_base": 1e6,
        "rope.scaling.type": "linear",
        "rope.scaling.factor": 8.0,
    }
    metadata = {"general.architecture": "gemma3", **{f"gemma3.{key}": value for key, value in keys.items()}}
    spec = spec_of_gguf({**metadata, "gemma3.vocab_size": VOCABULARY}, {}, "a.gguf")
    assert (spec.layers[0].memory.keys, spec.norm_adds_one) == ((2, 32, 32), False)
    assert [layer.window for layer in spec.layers] == [5, 5, 5, 5, 5, None]
    assert spec.layers[0].rope == RopeConfig(10_000.0, 32)
    rope = spec.layers[5].rope
    assert (rope.theta, rope.rope_type, rope.factor) == (1e6, "linear", 8.0)
    assert spec.config.number("query_pre_attn_scalar") == 32


GEMMA3: dict[str, Any] = {
    "block_count": 2,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "context_length": 512,
    "attention.head_count": np.array([4, 4]),
    "attention.head_count_kv": 2,
    "attention.key_length": 16,
    "attention.sliding_window": 5,
    "vocab_size": VOCABULARY,
}


def gemma3_spec(**changes: Any) -> ModelSpec:
    metadata = {f"gemma3.{key}": value for key, value in {**GEMMA3, **changes}.items()}
    return spec_of_gguf({"general.architecture": "gemma3", **metadata}, {}, "a.gguf")


@pytest.mark.parametrize(
    ("pattern", "windows"),
    [(None, [5, 5]), (1, [None, None]), (2, [5, None]), ([True, True], [5, 5]), ([1, 1], [5, 5]), ([0, 1], [None, 5])],
)
def test_windows_of_gguf_files(pattern: Any, windows: list[int | None]) -> None:
    given = {} if pattern is None else {"attention.sliding_window_pattern": pattern}
    for changes in (
        given,
        {key: np.array(value) if isinstance(value, list) else value for key, value in given.items()},
    ):
        assert [layer.window for layer in gemma3_spec(**changes).layers] == windows


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("block_count", 10**9, "is 1000000000; expected a whole number from 1 to 1000"),
        ("attention.head_count", 0, "is 0; expected a whole number above zero"),
        ("attention.key_length", "16", "is '16'; expected a whole number"),
        ("attention.sliding_window_pattern", 0, "is 0; expected a whole number above zero"),
        ("attention.sliding_window_pattern", [True], "has 1 values; expected one for each of 2 layers"),
        ("attention.sliding_window_pattern", "x", "is 'x'; expected a whole number"),
        ("rope.freq_base", "x", "is 'x'; expected a number above zero"),
        ("attn_logit_softcapping", -1.0, "is -1.0; expected a number above zero"),
    ],
)
def test_wrong_key_values_are_told(key: str, value: Any, problem: str) -> None:
    with pytest.raises(FormatError) as caught:
        gemma3_spec(**{key: value})
    assert str(caught.value).startswith(f"a.gguf: 'gemma3.{key}' {problem}")


def test_a_wrong_scaling_of_a_gguf_file_is_told() -> None:
    with pytest.raises(FormatError, match=r"a.gguf: 'gemma3.rope.scaling.factor' is 'x'; expected a number above zero"):
        gemma3_spec(**{"rope.scaling.type": "linear", "rope.scaling.factor": "x"})
    with pytest.raises(UsageError, match=r"positions of type 'longrope' are not known; expected one of none, linear"):
        gemma3_spec(**{"rope.scaling.type": "longrope"})
    with pytest.raises(UsageError, match="keys and values have heads of different sizes"):
        gemma3_spec(**{"attention.value_length": 8})


# -- what is wrong -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "zamba2"}, "models of type 'zamba2' cannot be run; expected one of .*arcee, .*gemma2, gemma3"),
        ({"hidden_size": None}, "has no 'hidden_size'; expected a whole number above zero"),
        ({"hidden_size": "64"}, "'hidden_size' is '64'; expected a whole number above zero"),
        ({"num_hidden_layers": -1}, "'num_hidden_layers' is -1; expected a whole number from 1 to 1000"),
        ({"num_key_value_heads": 3}, "4 heads cannot share 3 heads of keys; expected a divisor"),
        ({"hidden_act": "relu"}, "'hidden_act' is 'relu'; expected one of silu, swish"),
        ({"rope_scaling": {"rope_type": "unheard-of", "factor": 2.0}}, "positions of type 'unheard-of' are not known"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling: has no 'factor'; expected a number above zero"),
        ({"rope_scaling": [1]}, "'rope_scaling' is .1.; expected an object"),
        ({"tie_word_embeddings": "yes"}, "'tie_word_embeddings' is 'yes'; expected true or false"),
    ],
)
def test_wrong_configs_are_told(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    config = tiny_config("llama")
    folder = write_tiny(tmp_path, config, tiny_arrays(config))
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises((FormatError, UsageError), match=message) as caught:
        open_model(folder)
    assert str(folder) in str(caught.value)


def test_wrong_layer_types_are_told() -> None:
    with pytest.raises(FormatError, match=r"'layer_types' is .* for each of 3 layers"):
        spec_of_config(tiny_config("gemma2", layer_types=["full_attention"]))


def test_more_experts_than_there_are_is_told() -> None:
    with pytest.raises(FormatError, match="5 experts of 4 are used for a token; expected at most 4"):
        spec_of_config(tiny_config("mixtral", num_experts_per_tok=5))


def test_an_unknown_gguf_architecture_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    lbrx.save(path, {"token_embd.weight": lbrx.full((4, 4), 1.0, "f32")}, {"general.architecture": "rwkv7"})
    with pytest.raises(
        UsageError, match=r"a\.gguf: models of architecture 'rwkv7' cannot be run; expected one of llama"
    ):
        open_model(path)


def test_a_file_without_a_config_is_told(tmp_path: Path) -> None:
    lbrx.save(tmp_path / "model.safetensors", {"w": lbrx.full((4, 4), 1.0, "f32")})
    with pytest.raises(FormatError, match=r"has no config\.json next to it"):
        open_model(tmp_path / "model.safetensors")


@pytest.mark.parametrize("name", ["lm_head.weight", "model.layers.1.mlp.up_proj.weight", "model.norm.weight"])
def test_missing_tensors_are_told(name: str, tmp_path: Path) -> None:
    config = tiny_config("llama")
    arrays = tiny_arrays(config)
    del arrays[name]
    with pytest.raises(TensorNotFound, match=f"has no tensor '{name}'; expected one of shape"):
        open_model(write_tiny(tmp_path, config, arrays))


def test_wrong_shapes_are_told(tmp_path: Path) -> None:
    config = tiny_config("llama")
    arrays = tiny_arrays(config)
    arrays["model.layers.0.self_attn.k_proj.weight"] = np.zeros((64, 64), np.float32)
    with pytest.raises(ShapeError, match=r"k_proj.weight' has shape \(64, 64\); expected \(32, 64\)"):
        open_model(write_tiny(tmp_path, config, arrays))


def test_opening_reads_no_matrix(tmp_path: Path) -> None:
    config = tiny_config("llama")
    arrays = {name: np.full(shape, np.nan, np.float32) for name, shape in tiny_shapes(config).items()}
    model = open_model(write_tiny(tmp_path, config, arrays))
    assert np.isnan(model.logits([0])).all()


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, VOCABULARY], f"token {VOCABULARY} at position 1; expected 0 to {VOCABULARY - 1}"),
        ([-1], "token -1 at position 0"),
        ([0.5], "expected a sequence of whole numbers"),
        ([[1, 2]], "expected a sequence of whole numbers"),
    ],
)
def test_tokens_out_of_range_are_told(ids: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        tiny_model(tmp_path).logits(ids)


def test_all_experts_may_be_used() -> None:
    config = tiny_config("mixtral")
    spec_of_config(config | {"num_experts_per_tok": config["num_local_experts"]})
