"""Commands on quantized models do what they do on copies that hold the values of the weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.support.quantized_weights import quantized_demo

import lbrx
from lbrx.demo.models import demo_models
from lbrx.models.inference.opening import open_model

SOME_SCHEMES = ("fp8 blocks", "gptq 4 bits v1, act-order", "compressed 4 bits", "bitsandbytes nested")


@pytest.fixture(scope="module", params=SOME_SCHEMES)
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A quantized model, and its plain copy."""
    return quantized_demo(tmp_path_factory.mktemp("models"), request.param)


def assert_same_tensors(a: Path, b: Path) -> None:
    first, second = lbrx.open(a), lbrx.open(b)
    assert set(first) == set(second)
    for name in first:
        assert first[name].type_name == second[name].type_name
        assert first[name].raw().numpy().tobytes() == second[name].raw().numpy().tobytes(), name


def test_merging(models: tuple[Path, Path], tmp_path: Path) -> None:
    for number, model in enumerate(models):
        others = [{"model": str(each), "parameters": {"weight": 0.3}} for each in (model, demo_models().code)]
        recipe = {"merge_method": "ties", "base_model": str(demo_models().base), "models": others}
        lbrx.merge({**recipe, "parameters": {"density": 0.5}}, tmp_path / str(number))
    assert_same_tensors(tmp_path / "0", tmp_path / "1")
    assert "quantization_config" not in json.loads((tmp_path / "0" / "config.json").read_text())


def test_merging_two_quantized_models(tmp_path: Path) -> None:
    pairs = [quantized_demo(tmp_path / str(seed), "fp8 blocks", seed) for seed in (1, 2)]
    for number, inputs in enumerate(zip(*pairs, strict=True)):
        parts = [{"model": str(each), "parameters": {"weight": 0.5}} for each in inputs]
        lbrx.merge({"merge_method": "linear", "models": parts}, tmp_path / f"out{number}")
    assert_same_tensors(tmp_path / "out0", tmp_path / "out1")


def test_converting_and_quantizing(models: tuple[Path, Path], tmp_path: Path) -> None:
    for number, model in enumerate(models):
        lbrx.convert(model, tmp_path / f"{number}.gguf")
        lbrx.convert(model, tmp_path / f"{number}-hf", type="f16")
        lbrx.quantize(model, tmp_path / f"{number}-q4.gguf", to="q4_k_m", allow_requantize=True)
        lbrx.quantize(model, tmp_path / f"{number}-mlx", to="mlx_4", allow_requantize=True)
    for name in (".gguf", "-hf", "-q4.gguf", "-mlx"):
        assert_same_tensors(tmp_path / f"0{name}", tmp_path / f"1{name}")
    assert "quantization_config" not in json.loads((tmp_path / "0-hf" / "config.json").read_text())


def test_comparing_and_checking(models: tuple[Path, Path]) -> None:
    quantized, plain = models
    assert all(each.sums.relative_change == 0 for each in lbrx.diff(quantized, plain).tensors)
    assert all(each.relative_error == 0 for each in lbrx.compare(plain, quantized).tensors)
    assert not lbrx.verify(quantized).errors
    summary = lbrx.inspect(quantized)
    assert summary.parameters == lbrx.inspect(plain).parameters
    assert summary.quantization is not None
    assert lbrx.inspect(plain).quantization is None


def test_running(models: tuple[Path, Path]) -> None:
    tokens = [5, 9, 2, 77, 31]
    logits = [open_model(model).logits(tokens) for model in models]
    np.testing.assert_array_equal(*logits)
