"""`device="numpy"` gives the bits of the CPU where operations are exact, and stays close where they are not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.cli.main import run
from lbrx.demo.models import demo_models
from lbrx.devices.numpy.run import chunk_values
from lbrx.engine.device import recorded_passes
from lbrx.jobs.quantize import quantize
from lbrx.registry import CODECS
from lbrx.tensors.codecs.codec import codec
from lbrx.tensors.coded import SCHEMES
from support.references import even_importance

ULPS = 4
COLUMNS = 512
FUNCTIONS: dict[str, Callable[[lbrx.Tensor], lbrx.Tensor]] = {
    "exp": lambda x: x.exp(),
    "log": lambda x: abs(x).log(),
    "sin": lambda x: x.sin(),
    "cos": lambda x: x.cos(),
    "acos": lambda x: (x / 100).acos(),
    "normal": lambda x: lbrx.normal(x.shape, 3, "noise"),
}
METHODS = {
    "linear": "weight: 0.3",
    "slerp": "t: 0.3",
    "ties": "weight: 0.5, density: 0.4",
    "dare_ties": "weight: 0.5, density: 0.6",
    "della": "weight: 0.5, density: 0.6, epsilon: 0.1",
}


def numbers(*shape: int, seed: int = 0) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_within_four_units_in_the_last_place(name: str) -> None:
    x = lbrx.tensor(numbers(100_000) * 9)
    want = FUNCTIONS[name](x).numpy()
    with lbrx.using(device="numpy"):
        got = FUNCTIONS[name](x).numpy()
    assert (abs(got.astype(np.float64) - want) <= ULPS * np.spacing(abs(want))).all()


def test_sums_are_within_their_bound() -> None:
    x, y = lbrx.tensor(numbers(300_000)), lbrx.tensor(numbers(300_000, seed=1), "bf16")
    want = lbrx.evaluate(x.sum(), x.dot(y), y.norm(), (x * y).sum())
    with lbrx.using(device="numpy"):
        got = lbrx.evaluate(x.sum(), x.dot(y), y.norm(), (x * y).sum())
    np.testing.assert_allclose(np.array(got, float), np.array(want, float), rtol=1e-12, atol=1e-12 * 300_000)


@pytest.mark.parametrize("name", [*(name for name in CODECS if codec(name).can_encode), *SCHEMES])
def test_blocks_are_those_of_the_cpu(name: str) -> None:
    def blocks() -> list[bytes]:
        quantized = (lbrx.tensor(numbers(6, COLUMNS)) * 0.5).quantize(name, even_importance(name, COLUMNS)).realize()
        return [quantized.dequantize().numpy().tobytes()]

    want = blocks()
    with lbrx.using(device="numpy"):
        assert blocks() == want


def test_the_kth_largest_of_few_distinct_values_on_the_device() -> None:
    values = np.round(numbers(1200, 1000) * 4) / 4
    for tensor in (lbrx.tensor(values), lbrx.tensor(values, "bf16")):
        on_device = tensor.to_device("numpy")
        for k in (1, 1000, 400_000):
            assert float(on_device.kth_largest(k)) == float(tensor.kth_largest(k))
            np.testing.assert_array_equal(on_device.top_k_mask(k).numpy(), tensor.top_k_mask(k).numpy())


def test_every_value_of_a_pass_can_be_looked_at() -> None:
    with recorded_passes() as passes, lbrx.using(device="numpy"):
        (lbrx.tensor(np.arange(4, dtype=np.float32)) * 2 + 1).numpy()
    values = chunk_values(passes[0], np.arange(1, 3))
    assert [np.asarray(value).tolist() for value in values] == [[1, 2], 2, 1, [2, 4], [3, 5]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    shapes = {"model.norm.weight": (96,), "lm_head.weight": (900, 96), "model.layers.0.mlp.weight": (64, 96)}
    for number, name in enumerate("ABC"):
        values = {
            tensor: (lbrx.normal(shape, 1, tensor) + lbrx.normal(shape, number + 2, tensor) * 0.05).to("bf16").realize()
            for tensor, shape in shapes.items()
        }
        lbrx.save(folder / f"{name}.safetensors", values)
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("method", METHODS)
def test_merges_write_the_bytes_of_the_cpu(method: str, models: Path, tmp_path: Path) -> None:
    paths = [models / f"{name}.safetensors" for name in ("AB" if method == "slerp" else "ABC")]
    base = "" if method == "linear" else f"base_model: {paths[0]}\n"
    merged = paths if method in ("linear", "slerp") else paths[1:]
    listed = ", ".join(f"{{model: {path}}}" for path in merged)
    (tmp_path / "recipe.yml").write_text(
        f"merge_method: {method}\n{base}models: [{listed}]\nparameters: {{{METHODS[method]}}}\ndtype: bfloat16\n"
    )
    for device in ("cpu", "numpy"):
        arguments = ["merge", str(tmp_path / "recipe.yml"), str(tmp_path / device), "--device", device, "-q"]
        assert run(arguments) == 0
    assert files(tmp_path / "numpy") == files(tmp_path / "cpu")


def test_the_environment_chooses_the_device() -> None:
    code = "from lbrx.settings import settings; print(settings.device)"
    environment = {**os.environ, "LBRX_DEVICE": "numpy"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "numpy"


@pytest.mark.parametrize("to", ["q4_k_m", "mlx_4", "int8"])
def test_quantized_models_are_those_of_the_cpu(to: str, tmp_path: Path) -> None:
    written = []
    for device in ("cpu", "numpy"):
        out = tmp_path / device / ("model.gguf" if to == "q4_k_m" else "model")
        out.parent.mkdir()
        assert run(["quantize", str(demo_models().base), str(out), "--to", to, "--device", device, "-q"]) == 0
        written.append(files(out.parent if out.suffix else out))
    assert written[0] == written[1]


@pytest.mark.parametrize("to", [None, "q4_k_m"])
def test_logits_are_close_to_those_of_the_cpu(to: str | None, tmp_path: Path) -> None:
    path = demo_models().base
    if to is not None:
        path = tmp_path / "model.gguf"
        quantize(demo_models().base, path, to)
    model, ids = lbrx.open_model(path), [3, 77, 500, 12, 900, 4, 61]
    want = model.logits(ids)
    with lbrx.using(device="numpy"):
        got = model.logits(ids)
    np.testing.assert_allclose(got, want, atol=2e-3 * float(abs(want).max()))
