"""PEFT adapters applied to a model: the values that PEFT's formulas give, and clear errors before any work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import lbrx
from lbrx.cli.main import run
from lbrx.jobs.lora import open_with_adapter, read_config
from support.peft_fixture import (
    BF16,
    Q0,
    V1,
    assert_one_rounding_apart,
    base_arrays,
    lora_arrays,
    model,
    patched,
    random_array,
    write_adapter,
)

Q_WEIGHT = "model.layers.0.self_attn.q_proj.weight"
V_WEIGHT = "model.layers.1.self_attn.v_proj.weight"


def product(adapter: dict[str, Any], prefix: str) -> np.ndarray:
    a, b = (np.asarray(adapter[f"{prefix}{part}.weight"], np.float32) for part in "AB")
    return b @ a


def test_products_are_added_and_all_else_stays(tmp_path: Path) -> None:
    base, adapter = base_arrays(), lora_arrays()
    opened = open_with_adapter(model(base), write_adapter(tmp_path / "a", adapter))
    assert list(opened) == list(base)
    assert len(opened) == len(base)
    assert_one_rounding_apart(opened[Q_WEIGHT].numpy(), patched(base[Q_WEIGHT], 4 * product(adapter, Q0)))
    assert_one_rounding_apart(opened[V_WEIGHT].numpy(), patched(base[V_WEIGHT], 4 * product(adapter, V1)))
    for name in base.keys() - {Q_WEIGHT, V_WEIGHT}:
        np.testing.assert_array_equal(opened[name].numpy(), base[name])
    assert (opened[Q_WEIGHT].dtype.name, opened[Q_WEIGHT].shape, opened[Q_WEIGHT].name) == ("bf16", (80, 48), Q_WEIGHT)


@pytest.mark.parametrize(
    ("settings", "scale"),
    [
        ({"lora_alpha": 6}, 1.5),
        ({"lora_alpha": 6, "use_rslora": True}, 3.0),
        ({"alpha_pattern": {"self_attn.q_proj": 32}}, 8.0),
        ({"alpha_pattern": {"v_proj": 1, r"model\.layers\.\d+\.self_attn\.q_proj": 2}}, 0.5),
        ({"alpha_pattern": {"proj": 32}}, 4.0),  # a pattern is whole parts of the name
    ],
)
def test_scales(settings: dict[str, Any], scale: float, tmp_path: Path) -> None:
    base, adapter = base_arrays(), lora_arrays()
    opened = open_with_adapter(model(base), write_adapter(tmp_path / "a", adapter, **settings))
    assert_one_rounding_apart(opened[Q_WEIGHT].numpy(), patched(base[Q_WEIGHT], scale * product(adapter, Q0)))


def test_a_rank_of_its_own_changes_the_scale_of_its_module_alone(tmp_path: Path) -> None:
    base, adapter = base_arrays(), lora_arrays()
    adapter[f"{Q0}A.weight"], adapter[f"{Q0}B.weight"] = random_array(21, 2, 48), random_array(22, 80, 2)
    directory = write_adapter(tmp_path / "a", adapter, rank_pattern={"layers.0.self_attn.q_proj": 2})
    opened = open_with_adapter(model(base), directory)
    assert_one_rounding_apart(opened[Q_WEIGHT].numpy(), patched(base[Q_WEIGHT], 8 * product(adapter, Q0)))
    assert_one_rounding_apart(opened[V_WEIGHT].numpy(), patched(base[V_WEIGHT], 4 * product(adapter, V1)))
    assert read_config(directory).rank_of("model.layers.1.self_attn.v_proj") == 4


def test_weights_stored_as_inputs_by_outputs(tmp_path: Path) -> None:
    weight = random_array(1, 48, 48).astype(BF16)
    a, b = random_array(2, 4, 48), random_array(3, 48, 4)
    name = "base_model.model.transformer.h.0.attn.c_attn.lora_"
    directory = write_adapter(tmp_path / "a", {f"{name}A.weight": a, f"{name}B.weight": b}, fan_in_fan_out=True)
    opened = open_with_adapter(model({"transformer.h.0.attn.c_attn.weight": weight}), directory)
    actual = opened["transformer.h.0.attn.c_attn.weight"].numpy()
    assert_one_rounding_apart(actual, patched(weight, 4 * (b @ a).T))


def test_embeddings_are_transposed_products(tmp_path: Path) -> None:
    base = base_arrays()
    a, b = random_array(2, 4, 20), random_array(3, 48, 4)
    name = "base_model.model.model.embed_tokens.lora_embedding_"
    opened = open_with_adapter(model(base), write_adapter(tmp_path / "a", {f"{name}A": a, f"{name}B": b}))
    name = "model.embed_tokens.weight"
    assert_one_rounding_apart(opened[name].numpy(), patched(base[name], 4 * (b @ a).T))


def test_convolutions(tmp_path: Path) -> None:
    weight = random_array(1, 6, 5, 3, 3).astype(BF16)
    a, b = random_array(2, 4, 5, 3, 3), random_array(3, 6, 4, 1, 1)
    name = "base_model.model.patch_embed.proj.lora_"
    directory = write_adapter(tmp_path / "a", {f"{name}A.weight": a, f"{name}B.weight": b})
    opened = open_with_adapter(model({"patch_embed.proj.weight": weight}), directory)
    delta = 4 * (b.reshape(6, 4) @ a.reshape(4, 45)).reshape(weight.shape)
    assert_one_rounding_apart(opened["patch_embed.proj.weight"].numpy(), patched(weight, delta))


def test_modules_to_save_and_biases_replace(tmp_path: Path) -> None:
    base, adapter = base_arrays(), lora_arrays()
    head, bias, norm = random_array(31, 20, 48), random_array(32, 80), random_array(33, 48)
    adapter["base_model.model.lm_head.weight"] = head
    adapter["base_model.model.model.layers.0.self_attn.q_proj.base_layer.bias"] = bias
    adapter["base_model.model.model.layers.0.input_layernorm.modules_to_save.default.weight"] = norm
    opened = open_with_adapter(
        model(base), write_adapter(tmp_path / "a", adapter, bias="all", modules_to_save=["lm_head"])
    )
    for name, values in (
        ("lm_head.weight", head),
        ("model.layers.0.self_attn.q_proj.bias", bias),
        ("model.layers.0.input_layernorm.weight", norm),
    ):
        np.testing.assert_array_equal(opened[name].numpy(), values.astype(BF16))


def test_a_replaced_embedding_gets_its_product_too(tmp_path: Path) -> None:
    name = "base_model.model.model.embed_tokens."
    a, b, new = random_array(2, 4, 20), random_array(3, 48, 4), random_array(4, 20, 48).astype(BF16)
    arrays = {f"{name}lora_embedding_A": a, f"{name}lora_embedding_B": b, f"{name}base_layer.weight": new}
    opened = open_with_adapter(model(base_arrays()), write_adapter(tmp_path / "a", arrays))
    assert_one_rounding_apart(opened["model.embed_tokens.weight"].numpy(), patched(new, 4 * (b @ a).T))


def test_a_bias_of_the_product_is_scaled_and_added(tmp_path: Path) -> None:
    base, adapter = base_arrays(), lora_arrays()
    adapter[f"{Q0}B.bias"] = random_array(41, 80)
    opened = open_with_adapter(model(base), write_adapter(tmp_path / "a", adapter, lora_bias=True))
    name = "model.layers.0.self_attn.q_proj.bias"
    np.testing.assert_array_equal(opened[name].numpy(), patched(base[name], np.float32(4) * adapter[f"{Q0}B.bias"]))
    assert_one_rounding_apart(opened[Q_WEIGHT].numpy(), patched(base[Q_WEIGHT], 4 * product(adapter, Q0)))


def test_dora_gives_every_row_its_magnitude(tmp_path: Path) -> None:
    base, adapter = base_arrays(), lora_arrays()
    q_lengths, v_lengths = np.abs(random_array(51, 80)) + 1, np.abs(random_array(52, 16)) + 1
    adapter[f"{Q0}magnitude_vector"], adapter[f"{V1}magnitude_vector.weight"] = q_lengths, v_lengths
    opened = open_with_adapter(model(base), write_adapter(tmp_path / "a", adapter, use_dora=True))
    total = base[Q_WEIGHT].astype(np.float32) + 4 * product(adapter, Q0)
    expected = total * (q_lengths / np.linalg.norm(total, axis=1))[:, None]
    assert_one_rounding_apart(opened[Q_WEIGHT].numpy(), expected.astype(BF16))
    lengths = np.linalg.norm(opened[V_WEIGHT].numpy().astype(np.float32), axis=1)
    np.testing.assert_allclose(lengths, v_lengths, rtol=1e-2)


def test_names_with_an_adapter_in_them(tmp_path: Path) -> None:
    base, adapter = base_arrays(), lora_arrays()
    renamed = {name.replace(".weight", ".default.weight"): values for name, values in adapter.items()}
    opened = open_with_adapter(model(base), write_adapter(tmp_path / "a", renamed))
    assert_one_rounding_apart(opened[Q_WEIGHT].numpy(), patched(base[Q_WEIGHT], 4 * product(adapter, Q0)))


def test_a_saved_model_is_the_same_for_any_threads_and_chunks(tmp_path: Path) -> None:
    base = model({"up_proj.weight": random_array(1, 300, 500).astype(BF16)})
    name = "base_model.model.up_proj.lora_"
    arrays = {f"{name}A.weight": random_array(2, 4, 500), f"{name}B.weight": random_array(3, 300, 4)}
    opened = open_with_adapter(base, write_adapter(tmp_path / "a", arrays))
    saved = []
    for number, (threads, chunk_elements) in enumerate(((1, 1 << 30), (2, 1), (3, 70_000))):
        path = tmp_path / f"{number}.safetensors"
        with lbrx.using(threads=threads, chunk_elements=chunk_elements):
            lbrx.save(path, opened)
        saved.append(path.read_bytes())
    assert saved[0] == saved[1] == saved[2]


def without(adapter: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: values for key, values in adapter.items() if key != name}


ADAPTER = lora_arrays()
BROKEN: dict[str, tuple[dict[str, Any], dict[str, Any], type[lbrx.LbrxError], str]] = {
    "other kind": (ADAPTER, {"peft_type": "IA3"}, lbrx.UsageError, "peft_type is 'IA3'; expected 'LORA'"),
    "no kind": (ADAPTER, {"peft_type": None}, lbrx.UsageError, "peft_type is None"),
    "replicated layers": (ADAPTER, {"layer_replication": [[0, 2]]}, lbrx.UsageError, "layer_replication is set"),
    "parameters": (ADAPTER, {"target_parameters": ["a.b"]}, lbrx.FormatError, "no factors for 'a.b', which target_par"),
    "pissa": (ADAPTER, {"init_lora_weights": "pissa_niter_4"}, lbrx.UsageError, "changed the base weights"),
    "no rank": (ADAPTER, {"r": None}, lbrx.FormatError, "r is None; expected a whole number"),
    "text as alpha": (ADAPTER, {"lora_alpha": "16"}, lbrx.FormatError, "lora_alpha is '16'; expected a number"),
    "bad pattern": (ADAPTER, {"rank_pattern": {"(": 1}}, lbrx.FormatError, "not a valid regular expression"),
    "list as pattern": (ADAPTER, {"alpha_pattern": [1]}, lbrx.FormatError, "alpha_pattern is a list"),
    "wrong rank": (ADAPTER, {"r": 8}, lbrx.ShapeError, r"shape \(4, 48\), but axis 0 is the rank, which is 8"),
    "rank of B": (
        ADAPTER | {f"{Q0}B.weight": random_array(1, 80, 3)},
        {},
        lbrx.ShapeError,
        r"lora_B of 'model.layers.0.self_attn.q_proj' has shape \(80, 3\), but axis 1 is the rank",
    ),
    "wrong inputs": (
        ADAPTER | {f"{Q0}A.weight": random_array(1, 4, 47)},
        {},
        lbrx.ShapeError,
        r"lora_A \(4, 47\) and lora_B \(80, 4\) of 'model.*q_proj' make no product of shape \(80, 48\)",
    ),
    "vector": (ADAPTER | {f"{Q0}A.weight": random_array(1, 4)}, {}, lbrx.ShapeError, "expected a matrix of floats"),
    "integers": (
        ADAPTER | {f"{Q0}A.weight": np.zeros((4, 48), np.int32)},
        {},
        lbrx.ShapeError,
        "i32 of shape .* expected a matrix of floats",
    ),
    "no A": (without(ADAPTER, f"{Q0}A.weight"), {}, lbrx.FormatError, "q_proj' has no lora_A"),
    "unknown module": (
        ADAPTER | {"base_model.model.model.layers.7.self_attn.q_proj.lora_A.weight": random_array(1, 4, 48)},
        {},
        lbrx.TensorNotFound,
        "1 of the 3 tensors that the adapter changes are not in the model, such as "
        "'model.layers.7.self_attn.q_proj.weight' .*did you mean 'model.layers.0.self_attn.q_proj.weight'",
    ),
    "unknown head": (
        ADAPTER | {"base_model.model.score.weight": random_array(1, 2, 48)},
        {},
        lbrx.TensorNotFound,
        "'score.weight' for 'base_model.model.score.weight'",
    ),
    "head of another shape": (
        ADAPTER | {"base_model.model.lm_head.weight": random_array(1, 19, 48)},
        {},
        lbrx.ShapeError,
        r"'base_model.model.lm_head.weight' has shape \(19, 48\), but 'lm_head.weight' of the model has \(20, 48\)",
    ),
    "unknown part": (ADAPTER | {f"{Q0}E": random_array(1, 4)}, {}, lbrx.FormatError, "is not part of a LoRA adapter"),
    "two adapters": (
        ADAPTER | {f"{Q0}A.second.weight": random_array(1, 4, 48)},
        {},
        lbrx.FormatError,
        "has two tensors lora_A",
    ),
    "dora without magnitudes": (ADAPTER, {"use_dora": True}, lbrx.FormatError, "should have a lora_magnitude_vector"),
    "magnitudes without dora": (
        ADAPTER | {f"{Q0}magnitude_vector": random_array(1, 80)},
        {},
        lbrx.FormatError,
        "should have no lora_magnitude_vector",
    ),
    "short magnitudes": (
        {key: ADAPTER[key] for key in (f"{Q0}A.weight", f"{Q0}B.weight")}
        | {f"{Q0}magnitude_vector": random_array(1, 9)},
        {"use_dora": True},
        lbrx.ShapeError,
        "expected 80 elements",
    ),
    "bias without a bias": (
        ADAPTER | {f"{V1}B.bias": random_array(1, 16)},
        {},
        lbrx.TensorNotFound,
        "the model has no 'model.layers.1.self_attn.v_proj.bias'",
    ),
    "nothing": ({}, {}, lbrx.FormatError, "has no tensors"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_wrong_is_said_before_any_work(case: str, tmp_path: Path) -> None:
    arrays, settings, error_class, message = BROKEN[case]
    directory = write_adapter(tmp_path / "a", arrays, **settings)
    with pytest.raises(error_class, match=message) as caught:
        open_with_adapter(model(base_arrays()), directory)
    assert "\n" not in str(caught.value)
    assert str(directory) in str(caught.value)


def test_a_directory_without_its_files(tmp_path: Path) -> None:
    with pytest.raises(lbrx.FileError, match="gone"):
        open_with_adapter({}, tmp_path / "gone")
    with pytest.raises(lbrx.FileError, match=r"has no adapter_config\.json; expected the directory of a PEFT adapter"):
        open_with_adapter({}, tmp_path)
    directory = write_adapter(tmp_path / "a", ADAPTER)
    (directory / "adapter_model.safetensors").rename(directory / "adapter_model.bin")
    with pytest.raises(lbrx.FileError, match=r"has no adapter_model\.safetensors but adapter_model\.bin, a pickle"):
        open_with_adapter(model(base_arrays()), directory)
    (directory / "adapter_config.json").write_text("[")
    with pytest.raises(lbrx.FormatError, match="not valid JSON"):
        open_with_adapter(model(base_arrays()), directory)


def test_integer_and_8_bit_weights_are_not_patched(tmp_path: Path) -> None:
    directory = write_adapter(tmp_path / "a", ADAPTER)
    base = model(base_arrays()) | {Q_WEIGHT: lbrx.full((80, 48), 1, "f8_e4m3")}
    with pytest.raises(lbrx.DTypeError, match="is f8_e4m3; expected one of f64, f32, f16, bf16"):
        open_with_adapter(base, directory)


def test_a_merge_of_a_model_with_an_adapter(tmp_path: Path) -> None:
    base = base_arrays()
    save_file(base, tmp_path / "base.safetensors", {"format": "pt"})
    directory = write_adapter(tmp_path / "adapter", lora_arrays())
    models = "models: [{model: base.safetensors+adapter, parameters: {weight: 1.0}}]"
    (tmp_path / "recipe.yml").write_text(f"merge_method: linear\ndtype: bfloat16\n{models}\n")
    assert run(["merge", str(tmp_path / "recipe.yml"), str(tmp_path / "out"), "--quiet"]) == 0
    merged, opened = lbrx.open(tmp_path / "out"), open_with_adapter(model(base), directory)
    assert set(merged) == set(base)
    for name in base:
        np.testing.assert_array_equal(merged[name].numpy(), opened[name].numpy())


def test_an_adapter_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "adapter").write_text("{}")
    with pytest.raises(lbrx.FileError, match="adapter: is a file; expected the directory of an adapter"):
        read_config(tmp_path / "adapter")
