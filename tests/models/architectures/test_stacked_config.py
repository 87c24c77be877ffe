"""The config.json of stacked layers, other vocabularies and other dtypes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbrx.errors import UsageError
from lbrx.models.architectures import automatic, find_family, stacked_config
from support.family_goldens import golden
from support.tiny_architectures import TINY, Tiny

FULL, SLIDING = "full_attention", "sliding_attention"
every_tiny = pytest.mark.parametrize("tiny", TINY.values(), ids=TINY)


@every_tiny
def test_unchanged_layers_leave_the_config_unchanged(tiny: Tiny) -> None:
    before = copy.deepcopy(tiny.config)
    assert stacked_config(tiny.config) == before
    assert stacked_config(tiny.config, [0, 1, 2]) == before
    assert tiny.config == before


@every_tiny
def test_layer_count_is_written_under_the_key_that_the_config_uses(tiny: Tiny) -> None:
    key = "n_layer" if "n_layer" in tiny.config else "num_hidden_layers"
    result = stacked_config(tiny.config, [0, 1, 1, 2, 2])
    assert result[key] == 5
    assert find_family(result).layer_count(result) == 5


@given(sources=st.lists(st.integers(0, 3), min_size=1, max_size=9))
def test_lists_with_one_value_per_layer_follow_the_layers(sources: list[int]) -> None:
    config = {
        "num_hidden_layers": 4,
        "layer_types": ["a", "b", "c", "d"],
        "no_rope_layers": [1, 1, 1, 0],
        "sliding_window_pattern": [True, False, True, False],
        "num_attention_heads_per_layer": [4, 8, 12, 16],
        "layer_rope_theta": [1.0, 2.0, 3.0, 4.0],
        "eos_token_id": [5, 6, 7, 8],
        "architectures": ["SomeModel"],
    }
    result = stacked_config(config, sources)
    assert result["num_hidden_layers"] == len(sources)
    assert result["layer_types"] == ["abcd"[layer] for layer in sources]
    assert result["no_rope_layers"] == [[1, 1, 1, 0][layer] for layer in sources]
    assert result["sliding_window_pattern"] == [layer in (0, 2) for layer in sources]
    assert result["num_attention_heads_per_layer"] == [4 * layer + 4 for layer in sources]
    assert result["layer_rope_theta"] == [layer + 1.0 for layer in sources]
    assert result["eos_token_id"] == [5, 6, 7, 8]
    assert result["architectures"] == ["SomeModel"]


@given(sources=st.lists(st.integers(0, 5), min_size=1, max_size=9))
def test_lists_of_layer_numbers_follow_the_layers(sources: list[int]) -> None:
    config = {"num_hidden_layers": 6, "moe_layers": [1, 4], "cross_attention_layers": []}
    result = stacked_config(config, sources)
    assert [sources[layer] in (1, 4) for layer in range(len(sources))] == [
        layer in result["moe_layers"] for layer in range(len(sources))
    ]
    assert result["cross_attention_layers"] == []


def test_layers_of_several_models_take_the_values_of_their_own_configs() -> None:
    a = {"num_hidden_layers": 2, "layer_types": ["a0", "a1"], "moe_layers": [0]}
    b = {"num_hidden_layers": 3, "layer_types": ["b0", "b1", "b2"], "moe_layers": [2]}
    result = stacked_config(a, [(0, 0), (1, 2), (1, 0), (0, 1)], source_configs=[a, b])
    assert result == {
        "num_hidden_layers": 4,
        "layer_types": ["a0", "b2", "b0", "a1"],
        "moe_layers": [0, 1],
    }


def test_gemma3_attention_kinds_are_written_out_when_layers_move() -> None:
    config = {**TINY["gemma3"].config, "num_hidden_layers": 6, "sliding_window_pattern": 3}
    assert "layer_types" not in stacked_config(config, [0, 1, 2, 3, 4, 5])
    assert "layer_types" not in stacked_config(config, [3, 4, 5, 0, 1])
    result = stacked_config(config, [0, 1, 2, 2, 3])
    assert result["layer_types"] == [SLIDING, SLIDING, FULL, FULL, SLIDING]


def test_gemma3_pattern_is_six_unless_the_config_says_otherwise() -> None:
    config = {**TINY["gemma3"].config, "num_hidden_layers": 7}
    assert stacked_config(config, [5, 6])["layer_types"] == [FULL, SLIDING]


def test_gemma2_alternates() -> None:
    assert stacked_config(TINY["gemma2"].config, [0, 2])["layer_types"] == [SLIDING, SLIDING]
    assert "layer_types" not in stacked_config(TINY["gemma2"].config, [0, 1, 2, 1, 2])


def test_a_model_without_a_list_joins_one_that_has_it_by_its_rule() -> None:
    plain = TINY["gemma2"].config
    listed = {**plain, "layer_types": [FULL, FULL, SLIDING]}
    result = stacked_config(plain, [(0, 0), (1, 0), (1, 1)], source_configs=[plain, listed])
    assert result["layer_types"] == [SLIDING, FULL, FULL]


def test_a_list_that_another_model_lacks_is_an_error_without_a_rule() -> None:
    a, b = {"num_hidden_layers": 1}, {"num_hidden_layers": 1, "layer_types": ["x"]}
    with pytest.raises(UsageError, match="no list 'layer_types'"):
        stacked_config(a, [(0, 0), (1, 0)], source_configs=[a, b])


def test_qwen_windows_follow_the_layers() -> None:
    config = {**TINY["qwen2"].config, "use_sliding_window": True, "max_window_layers": 2}
    result = stacked_config(config, [0, 1, 0, 1, 2])
    assert result["layer_types"] == [FULL, FULL, FULL, FULL, SLIDING]
    assert result["max_window_layers"] == 4
    assert "layer_types" not in stacked_config({**config, "use_sliding_window": False}, [0, 0, 2])


def test_windows_that_cannot_be_kept_are_an_error() -> None:
    config = {**TINY["qwen3_moe"].config, "use_sliding_window": True, "max_window_layers": 2}
    with pytest.raises(UsageError, match="'max_window_layers' selects layers by position"):
        stacked_config(config, [0, 2, 1])
    assert stacked_config(config, [0, 1, 2]) == config


@pytest.mark.parametrize("model", ["qwen2_moe", "qwen3_moe"])
@given(sources=st.lists(st.integers(0, 2), min_size=1, max_size=8), step=st.integers(1, 3), dense=st.integers(0, 2))
def test_dense_layers_of_qwen_stay_dense(model: str, sources: list[int], step: int, dense: int) -> None:
    config = {**TINY[model].config, "mlp_only_layers": [dense], "decoder_sparse_step": step}
    result = stacked_config(config, sources)
    architecture = find_family(config)

    def sparse_layers(of: dict[str, Any]) -> set[int | None]:
        return {role.layer for role in architecture.tensors(of) if role.name.endswith(".mlp.gate.weight")}

    expected = {layer for layer, source in enumerate(sources) if source in sparse_layers(config)}
    assert sparse_layers(result) == expected


def test_nested_config_is_changed_in_its_place() -> None:
    config = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "num_hidden_layers": 3,
        "torch_dtype": "bfloat16",
        "text_config": {"num_hidden_layers": 3, "layer_types": ["a", "b", "c"], "torch_dtype": "bfloat16"},
        "vision_config": {"num_hidden_layers": 3, "dtype": "bfloat16"},
        "quantization_config": {"dtype": "int4"},
    }
    before = copy.deepcopy(config)
    result = stacked_config(config, [2, 0], vocab_size=99, dtype="f16")
    assert config == before
    assert result["num_hidden_layers"] == 2
    assert result["text_config"] == {
        "num_hidden_layers": 2,
        "layer_types": ["c", "a"],
        "torch_dtype": "float16",
        "vocab_size": 99,
    }
    assert result["vision_config"] == {"num_hidden_layers": 3, "dtype": "float16"}
    assert result["quantization_config"] == {"dtype": "int4"}
    assert result["torch_dtype"] == "float16"


def test_layer_count_that_a_nested_config_leaves_out_is_written() -> None:
    config = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}
    result = stacked_config(config, [*range(26), 23])
    assert result["text_config"]["num_hidden_layers"] == 27
    assert result["text_config"]["layer_types"][-4:] == [FULL, SLIDING, SLIDING, FULL]
    with pytest.raises(UsageError, match="the model has 26 layers"):
        stacked_config(config, [26])


def test_vocabulary_and_dtype() -> None:
    assert stacked_config({"vocab_size": 3}, vocab_size=4) == {"vocab_size": 4}
    assert stacked_config({}, dtype="f32") == {"torch_dtype": "float32"}
    assert stacked_config({"dtype": "float32"}, dtype="bf16") == {"dtype": "bfloat16"}
    both = {"vocab_size": 3, "text_config": {"vocab_size": 3}}
    assert stacked_config(both, vocab_size=5) == {"vocab_size": 5, "text_config": {"vocab_size": 5}}


def test_settings_of_single_layers_follow_their_layers() -> None:
    config = golden("gemma4").config
    newer = {key: value for key, value in config.items() if "global" not in key}  # as transformers 5.23 saves it
    assert newer["per_layer_config"] == {"2": {"head_dim": 32, "num_key_value_heads": 1}}
    gemma = find_family(newer)
    assert list(gemma.tensors(newer)) == list(gemma.tensors(config))
    full = {"head_dim": 32, "num_key_value_heads": 1}
    assert stacked_config(newer, [0, 2, 1, 2])["per_layer_config"] == {"1": full, "3": full}
    with pytest.raises(UsageError, match="has no 'per_layer_config', but the config of another stacked model has it"):
        stacked_config(newer, [(0, 0), (1, 2)], source_configs=[{**newer, "per_layer_config": None}, newer])
    other = {**newer, "per_layer_config": {"2": {"sliding_window": 4}}}
    with pytest.raises(UsageError, match="'per_layer_config' has settings of single layers that are not known"):
        gemma.whole_config(other, [], "config.json")


def test_automatic_architecture_counts_layers_by_the_config() -> None:
    architecture = automatic(["h.0.w", "h.1.w"])
    assert stacked_config({"n_layers": 2}, [1, 1, 0], architecture=architecture) == {"n_layers": 3}


@pytest.mark.parametrize(
    ("config", "sources", "message"),
    [
        ({"num_hidden_layers": 2}, [0, 2], "layer source 2: the model has 2 layers, numbered from 0"),
        ({"num_hidden_layers": 2}, [-1], "layer source -1: the model has 2 layers"),
        ({"num_hidden_layers": 2}, [(1, 0)], r"layer source \(1, 0\) names model 1, but there are 0"),
        ({"num_hidden_layers": "two"}, [0], "'num_hidden_layers' is 'two'; expected the number of layers"),
        ({"hidden_size": 2}, [0], "config.json: has no 'num_hidden_layers'"),
        (
            {"num_hidden_layers": 2, "layer_types": ["a"]},
            [0],
            "'layer_types' has 1 values; expected one for each of 2 layers",
        ),
    ],
)
def test_layers_that_do_not_exist(config: dict[str, Any], sources: list[Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        stacked_config(config, sources)
