"""Adapters extracted from the difference of two models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import lbrx
from lbrx.jobs.lora import Extraction, ExtractOptions, extract_adapter, open_with_adapter
from lbrx.jobs.lora.extract import _squares
from support.peft_fixture import BF16, Arrays, base_arrays, model, random_array

Q_WEIGHT = "model.layers.0.self_attn.q_proj.weight"
V_WEIGHT = "model.layers.1.self_attn.v_proj.weight"


def f32_arrays() -> Arrays:
    return {name: values.astype(np.float32) for name, values in base_arrays().items()}


def low_rank_delta(seed: int, rows: int, columns: int, rank: int) -> np.ndarray:
    return 0.1 * random_array(seed, rows, rank) @ random_array(seed + 1, rank, columns)


def tuned_arrays(rank: int = 3) -> Arrays:
    arrays = f32_arrays()
    arrays[Q_WEIGHT] = arrays[Q_WEIGHT] + low_rank_delta(61, 80, 48, rank)
    arrays[V_WEIGHT] = arrays[V_WEIGHT] + low_rank_delta(71, 16, 48, rank)
    return arrays


def config_of(directory: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((directory / "adapter_config.json").read_text())
    return config


def test_a_low_rank_change_is_recovered(tmp_path: Path) -> None:
    base, tuned = f32_arrays(), tuned_arrays(rank=3)
    found = extract_adapter(model(tuned), model(base), tmp_path / "a", ExtractOptions(rank=3), base_name="models/tiny")
    assert [(tensor.name, tensor.rank) for tensor in found.captured] == [(Q_WEIGHT, 3), (V_WEIGHT, 3)]
    assert all(tensor.relative_error < 1e-5 for tensor in found.captured)
    assert (found.saved, found.left_out, found.unchanged) == ([], [], 4)
    change = np.linalg.norm(tuned[Q_WEIGHT] - base[Q_WEIGHT]) / np.linalg.norm(base[Q_WEIGHT])
    assert found.captured[0].relative_change == pytest.approx(change, rel=1e-5)
    restored = open_with_adapter(model(base), tmp_path / "a")
    for name, values in tuned.items():
        np.testing.assert_allclose(restored[name].numpy(), values, atol=1e-5)


def test_the_directory_is_what_peft_writes(tmp_path: Path) -> None:
    extract_adapter(model(tuned_arrays()), model(f32_arrays()), tmp_path / "a", ExtractOptions(rank=3), base_name="b")
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    weights = load_file(tmp_path / "a" / "adapter_model.safetensors")
    prefix = "base_model.model.model.layers."
    assert {name: (values.shape, values.dtype.name) for name, values in weights.items()} == {
        f"{prefix}0.self_attn.q_proj.lora_A.weight": ((3, 48), "float32"),
        f"{prefix}0.self_attn.q_proj.lora_B.weight": ((80, 3), "float32"),
        f"{prefix}1.self_attn.v_proj.lora_A.weight": ((3, 48), "float32"),
        f"{prefix}1.self_attn.v_proj.lora_B.weight": ((16, 3), "float32"),
    }
    config = config_of(tmp_path / "a")
    assert config["peft_type"] == "LORA"
    assert config["base_model_name_or_path"] == "b"
    assert (config["r"], config["lora_alpha"], config["rank_pattern"], config["alpha_pattern"]) == (3, 3, {}, {})
    assert config["target_modules"] == ["q_proj", "v_proj"]
    assert (config["bias"], config["modules_to_save"], config["fan_in_fan_out"]) == ("none", None, False)


def test_the_error_is_that_of_the_best_approximation_and_is_measured(tmp_path: Path) -> None:
    base = {"up_proj.weight": random_array(1, 90, 70)}
    spectrum = np.arange(1, 71) ** -0.8
    left, _, right = np.linalg.svd(random_array(2, 90, 70).astype(np.float64), full_matrices=False)
    tuned = {"up_proj.weight": base["up_proj.weight"] + ((left * spectrum) @ right).astype(np.float32)}
    found = extract_adapter(model(tuned), model(base), tmp_path / "a", ExtractOptions(rank=10))
    optimum = np.sqrt(np.sum(spectrum[10:] ** 2) / np.sum(spectrum**2))
    assert optimum - 1e-5 < found.captured[0].relative_error < 1.001 * optimum
    restored = open_with_adapter(model(base), tmp_path / "a")["up_proj.weight"].numpy()
    difference = tuned["up_proj.weight"] - base["up_proj.weight"]
    error = np.linalg.norm(restored - tuned["up_proj.weight"]) / np.linalg.norm(difference)
    assert found.captured[0].relative_error == pytest.approx(error, rel=1e-3)
    assert found.captured[0].captured_energy == pytest.approx(1 - error**2, rel=1e-3)


@pytest.mark.parametrize("dtype_name", ["f32", "bf16"])
def test_every_matrix_gets_the_smallest_rank_within_the_bound(dtype_name: str, tmp_path: Path) -> None:
    base, tuned = f32_arrays(), tuned_arrays(rank=3)
    noise = 1e-3 * random_array(81, 80, 48)
    tuned[Q_WEIGHT] = f32_arrays()[Q_WEIGHT] + low_rank_delta(61, 80, 48, 7) + noise
    options = ExtractOptions(max_error=0.05, dtype=dtype_name)
    found = extract_adapter(model(tuned), model(base), tmp_path / "a", options)
    for tensor in found.captured:
        values = np.linalg.svd((tuned[tensor.name] - base[tensor.name]).astype(np.float64), compute_uv=False)
        errors = np.sqrt(np.maximum(1 - np.cumsum(values**2) / np.sum(values**2), 0))
        assert tensor.rank == int(np.flatnonzero(errors <= 0.05)[0]) + 1
        assert tensor.relative_error <= 0.05
    ranks = {tensor.name.removesuffix(".weight"): tensor.rank for tensor in found.captured}
    largest = max(ranks.values())
    smaller = {name: rank for name, rank in ranks.items() if rank < largest}
    config = config_of(tmp_path / "a")
    assert len(smaller) == 1
    assert (config["r"], config["rank_pattern"], config["alpha_pattern"]) == (largest, smaller, smaller)
    restored = open_with_adapter(model(base), tmp_path / "a")
    for name in (Q_WEIGHT, V_WEIGHT):
        difference = tuned[name] - base[name]
        assert np.linalg.norm(restored[name].numpy() - tuned[name]) <= 0.0501 * np.linalg.norm(difference)


def test_a_bound_that_needs_more_than_the_first_sketch(tmp_path: Path) -> None:
    base = {"up_proj.weight": random_array(1, 120, 100)}
    tuned = {"up_proj.weight": base["up_proj.weight"] + random_array(2, 120, 100)}
    found = extract_adapter(model(tuned), model(base), tmp_path / "a", ExtractOptions(max_error=0.1))
    values = np.linalg.svd((tuned["up_proj.weight"] - base["up_proj.weight"]).astype(np.float64), compute_uv=False)
    errors = np.sqrt(np.maximum(1 - np.cumsum(values**2) / np.sum(values**2), 0))
    assert found.captured[0].rank == int(np.flatnonzero(errors <= 0.1)[0]) + 1 > 64
    limited = extract_adapter(model(tuned), model(base), tmp_path / "b", ExtractOptions(rank=40, max_error=0.1))
    assert limited.captured[0].rank == 40
    assert limited.captured[0].relative_error > 0.1


@pytest.mark.parametrize("shape", [(90, 160), (160, 90)])
@pytest.mark.parametrize("dtype_name", ["f32", "bf16"])
def test_noise_gets_the_smallest_rank_that_its_rounded_factors_allow(
    shape: tuple[int, int], dtype_name: str, tmp_path: Path
) -> None:
    base = {"up_proj.weight": random_array(1, *shape)}
    tuned = {"up_proj.weight": base["up_proj.weight"] + random_array(2, *shape)}
    found = extract_adapter(model(tuned), model(base), tmp_path / "a", ExtractOptions(max_error=0.05, dtype=dtype_name))
    rank = found.captured[0].rank
    assert found.captured[0].relative_error <= 0.05
    exact = ExtractOptions(rank=rank - 1, dtype=dtype_name)
    assert extract_adapter(model(tuned), model(base), tmp_path / "b", exact).captured[0].relative_error > 0.05


def test_an_error_that_rounding_forbids_is_told(tmp_path: Path) -> None:
    base = {"up_proj.weight": random_array(1, 60, 50)}
    tuned = {"up_proj.weight": base["up_proj.weight"] + random_array(2, 60, 50)}
    options = ExtractOptions(max_error=1e-4, dtype="bf16")
    (captured,) = extract_adapter(model(tuned), model(base), tmp_path / "a", options).captured
    assert captured.rank == 50
    assert 1e-4 < captured.relative_error < 1e-2


def test_a_saved_module_has_all_of_its_tensors(tmp_path: Path) -> None:
    base = {"q_proj.weight": random_array(1, 8, 8), "norm.weight": np.ones(8, "f4"), "norm.bias": np.zeros(8, "f4")}
    tuned = base | {"q_proj.weight": random_array(2, 8, 8), "norm.weight": np.full(8, 2, "f4")}
    found = extract_adapter(model(tuned), model(base), tmp_path / "a", ExtractOptions(save_modules=True))
    stored = lbrx.open(tmp_path / "a" / "adapter_model.safetensors")
    assert found.saved == ["norm.weight"]
    assert found.unchanged == 1
    assert stored["base_model.model.norm.weight"].numpy().tolist() == [2] * 8
    assert stored["base_model.model.norm.bias"].numpy().tolist() == [0] * 8


def test_a_pattern_that_matches_nothing_is_told(tmp_path: Path) -> None:
    with pytest.raises(lbrx.UsageError, match=r"nothing to extract: .*2 tensors: its module was not chosen"):
        extract_adapter(model(tuned_arrays()), model(f32_arrays()), tmp_path / "a", ExtractOptions(modules="absent"))


def test_bf16_models_and_factors(tmp_path: Path) -> None:
    base = base_arrays()
    tuned = base | {Q_WEIGHT: (base[Q_WEIGHT].astype(np.float32) + low_rank_delta(61, 80, 48, 3)).astype(BF16)}
    options = ExtractOptions(rank=48, dtype="bf16")
    found = extract_adapter(model(tuned), model(base), tmp_path / "a", options)
    assert found.captured[0].rank == 48
    assert 0 < found.captured[0].relative_error < 0.01
    weights = lbrx.open(tmp_path / "a" / "adapter_model.safetensors")
    assert {tensor.dtype.name for tensor in weights.values()} == {"bf16"}
    restored = open_with_adapter(model(base), tmp_path / "a")[Q_WEIGHT].numpy().astype(np.float32)
    np.testing.assert_allclose(restored, tuned[Q_WEIGHT].astype(np.float32), rtol=2**-6, atol=2e-3)


def changed_everywhere() -> Arrays:
    arrays = tuned_arrays()
    for name in (
        "model.embed_tokens.weight",
        "model.layers.0.input_layernorm.weight",
        "model.layers.0.self_attn.q_proj.bias",
    ):
        arrays[name] = arrays[name] + 1
    return arrays


def test_what_is_no_linear_weight_is_left_out_with_its_reason(tmp_path: Path) -> None:
    tuned = changed_everywhere() | {"model.new.weight": random_array(1, 2, 2)}
    tuned["lm_head.weight"] = random_array(2, 21, 48)
    base = f32_arrays() | {"model.old.weight": random_array(1, 2, 2)}
    found = extract_adapter(model(tuned), model(base), tmp_path / "a")
    assert {tensor.name: tensor.reason for tensor in found.left_out} == {
        "model.embed_tokens.weight": "not a weight of a linear layer",
        "model.layers.0.self_attn.q_proj.bias": "not a weight of a linear layer",
        "model.layers.0.input_layernorm.weight": "not a weight of a linear layer",
        "lm_head.weight": "its shape is (21, 48), that of the base (20, 48)",
        "model.new.weight": "the base does not have it",
        "model.old.weight": "only the base has it",
    }
    assert len(found.captured) == 2


def test_what_is_no_linear_weight_can_be_saved_whole(tmp_path: Path) -> None:
    base, tuned = f32_arrays(), changed_everywhere()
    found = extract_adapter(model(tuned), model(base), tmp_path / "a", ExtractOptions(rank=3, save_modules=True))
    assert found.left_out == []
    assert len(found.saved) == 3
    config = config_of(tmp_path / "a")
    assert config["modules_to_save"] == ["model.embed_tokens", "model.layers.0.input_layernorm"]
    assert config["bias"] == "all"
    weights = load_file(tmp_path / "a" / "adapter_model.safetensors")
    assert "base_model.model.model.embed_tokens.weight" in weights
    assert "base_model.model.model.layers.0.self_attn.q_proj.base_layer.bias" in weights
    restored = open_with_adapter(model(base), tmp_path / "a")
    for name, values in tuned.items():
        np.testing.assert_allclose(restored[name].numpy(), values, atol=1e-5)


def test_only_chosen_modules(tmp_path: Path) -> None:
    options = ExtractOptions(rank=3, modules=r"q_proj$", save_modules=True)
    found = extract_adapter(model(changed_everywhere()), model(f32_arrays()), tmp_path / "a", options)
    assert [tensor.name for tensor in found.captured] == [Q_WEIGHT]
    assert found.saved == ["model.layers.0.self_attn.q_proj.bias"]
    assert {tensor.reason for tensor in found.left_out} == {"its module was not chosen"}


def test_target_modules_name_no_module_that_is_not_captured(tmp_path: Path) -> None:
    base = f32_arrays() | {"model.layers.1.self_attn.q_proj.weight": random_array(1, 80, 48)}
    tuned = tuned_arrays() | {"model.layers.1.self_attn.q_proj.weight": random_array(1, 80, 48)}
    extract_adapter(model(tuned), model(base), tmp_path / "a", ExtractOptions(rank=3))
    assert config_of(tmp_path / "a")["target_modules"] == [
        "model.layers.0.self_attn.q_proj",
        "model.layers.1.self_attn.v_proj",
    ]


def test_weights_of_gpt2_are_transposed(tmp_path: Path) -> None:
    base = {"h.0.attn.c_attn.weight": random_array(1, 16, 16)}
    tuned = {"h.0.attn.c_attn.weight": base["h.0.attn.c_attn.weight"] + low_rank_delta(5, 16, 16, 2)}
    extract_adapter(model(tuned), model(base), tmp_path / "a", ExtractOptions(rank=2), model_type="gpt2")
    assert config_of(tmp_path / "a")["fan_in_fan_out"] is True
    weights = load_file(tmp_path / "a" / "adapter_model.safetensors")
    a, b = (weights[f"base_model.model.h.0.attn.c_attn.lora_{part}.weight"] for part in "AB")
    np.testing.assert_allclose((b @ a).T, low_rank_delta(5, 16, 16, 2), atol=1e-5)
    restored = open_with_adapter(model(base), tmp_path / "a")["h.0.attn.c_attn.weight"].numpy()
    np.testing.assert_allclose(restored, tuned["h.0.attn.c_attn.weight"], atol=1e-5)


def test_the_same_bytes_for_any_threads_and_chunks(tmp_path: Path) -> None:
    written = []
    for number, (threads, chunk_elements) in enumerate(((1, 1 << 20), (3, 1))):
        with lbrx.using(threads=threads, chunk_elements=chunk_elements):
            extract_adapter(model(tuned_arrays()), model(f32_arrays()), tmp_path / str(number), ExtractOptions(rank=2))
        written.append((tmp_path / str(number) / "adapter_model.safetensors").read_bytes())
    assert written[0] == written[1]


def test_progress_counts_the_tensors(tmp_path: Path) -> None:
    steps: list[tuple[int, int, str]] = []
    extract_adapter(
        model(tuned_arrays()), model(f32_arrays()), tmp_path / "a", progress=lambda *step: steps.append(step)
    )
    assert steps == [(number + 1, 6, name) for number, name in enumerate(f32_arrays())]


def test_errors_leave_nothing_behind(tmp_path: Path) -> None:
    base = model(f32_arrays())
    with pytest.raises(lbrx.UsageError, match="nothing to extract: 6 tensors: equal in both models"):
        extract_adapter(base, base, tmp_path / "a")
    broken = tuned_arrays()
    broken[V_WEIGHT][3, 4] = np.nan
    with pytest.raises(lbrx.FormatError, match=r"v_proj\.weight' has NaN or infinite values"):
        extract_adapter(model(broken), base, tmp_path / "a")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").touch()
    with pytest.raises(lbrx.FileError, match="expected a new or empty directory"):
        extract_adapter(model(tuned_arrays()), base, tmp_path / "a")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 0}, "a rank of 0"),
        ({"max_error": 1.5}, "a largest error of 1.5"),
        ({"dtype": "i8"}, "not stored as 'i8'; expected one of f32, bf16, f16"),
        ({"modules": "("}, "not a valid regular expression"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(lbrx.UsageError, match=message):
        ExtractOptions(**options)


def test_the_share_that_was_captured() -> None:
    assert Extraction(squares=4.0, left_over=1.0).captured_energy == 0.75
    assert Extraction().captured_energy == 1.0


def test_rounding_that_costs_several_ranks(tmp_path: Path) -> None:
    base = {"up_proj.weight": random_array(1, 60, 50)}
    left, right = np.linalg.qr(random_array(3, 60, 50))[0], np.linalg.qr(random_array(4, 50, 50))[0]
    values = np.concatenate([np.full(10, 10.0), np.full(40, 0.05)])
    tuned = {"up_proj.weight": (base["up_proj.weight"] + (left * values) @ right).astype(np.float32)}
    options = ExtractOptions(max_error=0.005, dtype="bf16")
    (captured,) = extract_adapter(model(tuned), model(base), tmp_path / "a", options).captured
    missing = np.sqrt(np.cumsum(values[::-1] ** 2)[::-1] / np.sum(values**2))
    assert missing[captured.rank - 2] < 0.005  # two less would do without rounding
    assert captured.relative_error <= 0.005
    fewer = ExtractOptions(rank=captured.rank - 1, dtype="bf16")
    assert extract_adapter(model(tuned), model(base), tmp_path / "b", fewer).captured[0].relative_error > 0.005


def test_a_bound_within_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sketch as wide as the matrix takes the place of its product with itself."""
    base = {"up_proj.weight": random_array(1, 120, 100)}
    tuned = {"up_proj.weight": base["up_proj.weight"] + random_array(2, 120, 100)}
    options = ExtractOptions(max_error=0.1)
    (expected,) = extract_adapter(model(tuned), model(base), tmp_path / "a", options).captured
    monkeypatch.setattr("lbrx.jobs.lora.extract.vectors_within", lambda *_: None)
    (captured,) = extract_adapter(model(tuned), model(base), tmp_path / "b", options).captured
    assert captured.rank == expected.rank
    assert captured.relative_error <= 0.1


def test_an_empty_tensor_has_not_changed() -> None:
    assert _squares(lbrx.zeros((0, 4)), lbrx.zeros((0, 4))) == (0.0, 0.0)
