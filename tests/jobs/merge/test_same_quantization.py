"""Merges that keep the quantization of their inputs: parts, settings and values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.support.quantized_weights import quantized_demo, repeat, write_model

import lbrx
from lbrx.demo.models import demo_models
from lbrx.errors import UsageError

KEPT = {  # the largest relative error of rounding a merged weight again
    "fp8 blocks": 0.04,
    "fp8 rows": 0.04,
    "fp8 tensor": 0.04,
    "compressed mxfp4": 0.2,
    "compressed nvfp4": 0.15,
    "modelopt nvfp4": 0.15,
    "bitsandbytes int8": 0.01,
    "compressed 8 bits, symmetric": 0.02,
    "compressed 4 bits, symmetric": 0.2,
    "compressed 4 bits": 0.2,
    "compressed 2 bits": 0.8,
    "gptq 4 bits v1, act-order": 0.2,
    "gptq 8 bits v2": 0.02,
    "awq": 0.2,
}
WEIGHT = "model.layers.1.mlp.down_proj.weight"


def merged(path: Path, models: list[Path], **options: Any) -> lbrx.Checkpoint:
    parts = [{"model": str(each), "parameters": {"weight": 0.5}} for each in models]
    lbrx.merge({"merge_method": "linear", "models": parts}, path, **options)
    return lbrx.open(path)


@pytest.mark.parametrize("scheme", KEPT)
def test_the_layout_and_the_values(scheme: str, tmp_path: Path) -> None:
    models = [quantized_demo(tmp_path / str(seed), scheme, seed) for seed in (1, 2)]
    same = merged(tmp_path / "same", [each for each, _ in models], quantize="same")
    plain = merged(tmp_path / "plain", [each for _, each in models])
    stored, first = lbrx.open(tmp_path / "same", raw=True), lbrx.open(models[0][0], raw=True)
    assert {name: (each.type_name, each.shape) for name, each in stored.items()} == {
        name: (each.type_name, each.shape) for name, each in first.items()
    }
    settings = [
        json.loads((path / "config.json").read_text())["quantization_config"]
        for path in (tmp_path / "same", models[0][0])
    ]
    assert settings[0] == settings[1]
    assert set(same) == set(plain)
    for name in plain:
        error = float((same[name] - plain[name]).norm() / plain[name].norm())
        assert error <= (KEPT[scheme] if name.endswith("proj.weight") else 0), (name, error)
        assert error > 0 or not name.endswith("proj.weight")
    assert not lbrx.verify(tmp_path / "same").errors


def test_codes_and_scales_of_fp8(tmp_path: Path) -> None:
    """Blocks at the end of rows and columns are smaller."""
    rng, tensors, config = np.random.default_rng(0), {}, {"quant_method": "fp8", "weight_block_size": [24, 20]}
    for name, number in (("a", 1), ("b", 2)):
        codes = rng.standard_normal((60, 50)).astype(np.float32).astype(ml_dtypes.float8_e4m3fn)
        scales = rng.uniform(0.5, 1, (3, 3)).astype(np.float32)
        scales[0, 0] = number - 1
        tensors[name] = codes.astype(np.float32) * repeat(scales, (24, 20), (60, 50))
        lbrx.save(tmp_path / name / "model.safetensors", {"l.weight": codes, "l.weight_scale_inv": scales})
        (tmp_path / name / "config.json").write_text(json.dumps({"dtype": "float32", "quantization_config": config}))
    merged(tmp_path / "out", [tmp_path / "a", tmp_path / "b"], quantize="same")
    stored = lbrx.open(tmp_path / "out", raw=True)
    values = (tensors["a"] * np.float32(0.5) + tensors["b"] * np.float32(0.5)).astype(np.float32)
    expected = np.ones((3, 3), np.float32)
    for row in range(3):
        for column in range(3):
            tile = values[24 * row : 24 * row + 24, 20 * column : 20 * column + 20]
            expected[row, column] = np.abs(tile).max() / np.float32(448)
    np.testing.assert_array_equal(stored["l.weight_scale_inv"].numpy(), expected)
    codes = (values / repeat(expected, (24, 20), (60, 50))).astype(ml_dtypes.float8_e4m3fn)
    np.testing.assert_array_equal(stored["l.weight"].to("f32").numpy(), codes.astype(np.float32))


def test_experts_of_gpt_oss(tmp_path: Path) -> None:
    """Codes of a model merged with itself have the same values."""
    rng, name = np.random.default_rng(0), "model.layers.0.mlp.experts.down_proj"
    parts = {
        f"{name}_blocks": rng.integers(0, 256, (3, 40, 2, 16)).astype(np.uint8),
        f"{name}_scales": rng.integers(100, 140, (3, 40, 2)).astype(np.uint8),
    }
    path, copy = (write_model(tmp_path / each, parts, {"quant_method": "mxfp4"}) for each in "ab")
    out = merged(tmp_path / "out", [path, copy], quantize="same")
    assert out[name].shape == (3, 64, 40)
    np.testing.assert_array_equal(out[name].to("f32").numpy(), lbrx.open(path)[name].to("f32").numpy())
    stored = lbrx.open(tmp_path / "out", raw=True)
    assert {each: tensor.shape for each, tensor in stored.items()} == {each: part.shape for each, part in parts.items()}


def test_scales_of_activations_are_copied(tmp_path: Path) -> None:
    model, _ = quantized_demo(tmp_path, "modelopt nvfp4")
    merged(tmp_path / "out", [model], quantize="same")
    name = WEIGHT.replace(".weight", ".input_scale")
    assert float(lbrx.open(tmp_path / "out", raw=True)[name]) == 0.5


def test_repeated_layers(tmp_path: Path) -> None:
    model, _ = quantized_demo(tmp_path, "fp8 rows")
    sources = [{"sources": [{"model": str(model), "layer_range": [0, 2]}]}] * 2
    lbrx.merge({"merge_method": "passthrough", "slices": sources}, tmp_path / "out", quantize="same")
    stored, first = lbrx.open(tmp_path / "out", raw=True), lbrx.open(model, raw=True)
    layers = {name.split(".")[2] for name in stored if name.startswith("model.layers.")}
    assert layers == {"0", "1", "2", "3"}
    for name, each in stored.items():
        assert (
            each.type_name == first[name.replace("layers.2.", "layers.0.").replace("layers.3.", "layers.1.")].type_name
        )
    error = (lbrx.open(tmp_path / "out")[WEIGHT.replace(".1.", ".3.")] - lbrx.open(model)[WEIGHT]).norm()
    assert float(error / lbrx.open(model)[WEIGHT].norm()) < 0.04


def test_resuming_and_threads_give_the_same_bytes(tmp_path: Path) -> None:
    models = [quantized_demo(tmp_path / str(seed), "fp8 blocks", seed)[0] for seed in (1, 2)]
    for threads in (1, 3):
        merged(tmp_path / f"out{threads}", models, quantize="same", threads=threads)
    files = [(tmp_path / f"out{threads}" / "model.safetensors").read_bytes() for threads in (1, 3)]
    assert files[0] == files[1]


@pytest.mark.parametrize("scheme", ["gptq 3 bits v1, act-order", "bitnet", "compressed int8", "bitsandbytes nested"])
def test_schemes_that_cannot_be_written(scheme: str, tmp_path: Path) -> None:
    model, _ = quantized_demo(tmp_path, scheme)
    with pytest.raises(
        UsageError, match=r"cannot be written.*; expected .* \(without 'same', the output has plain weights"
    ):
        merged(tmp_path / "out", [model], quantize="same")
    assert not (tmp_path / "out").exists()


def test_plain_models_have_nothing_to_keep(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="none of the models is quantized"):
        merged(tmp_path / "out", [demo_models().base], quantize="same")
    model, _ = quantized_demo(tmp_path, "fp8 rows")
    with pytest.raises(UsageError, match="expected the name of a directory"):
        merged(tmp_path / "out.gguf", [model], quantize="same")
