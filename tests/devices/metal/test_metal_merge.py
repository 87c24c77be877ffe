"""`lbrx merge --device metal` writes the CPU's bytes; dispatches, bytes and compilations are counted."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.cli.main import run
from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.context.current import using_metal
from lbrx.devices.metal.driver.artifacts import ArtifactStore
from support.metal_passes import on_metal
from support.metal_shaders import driver, needs_clang

pytestmark = needs_clang
LAYERS = 12
SHAPES = {"model.norm.weight": (96,), **{f"model.layers.{n}.mlp.weight": (64, 96) for n in range(LAYERS)}}
MODEL_BYTES = sum(2 * int(np.prod(shape)) for shape in SHAPES.values())
METHODS = {
    "linear": "merge_method: linear\nmodels: [{a}, {b}, {c}]",
    "task_arithmetic": "merge_method: task_arithmetic\nbase_model: A\nmodels: [{b}, {c}]",
    "slerp": "merge_method: slerp\nbase_model: A\nmodels: [{model: A}, {model: B}]\nparameters: {t: 0.3}",
    "dare_ties": "merge_method: dare_ties\nbase_model: A\nmodels: [{b}, {c}]\nparameters: {density: 0.6}",
    "ties": "merge_method: ties\nbase_model: A\nmodels: [{b}, {c}]\nparameters: {density: 0.4}",
    "model_stock": "merge_method: model_stock\nbase_model: A\nmodels: [{model: B}, {model: C}]",
    "della": "merge_method: della\nbase_model: A\nmodels: [{b}, {c}]\nparameters: {density: 0.6, epsilon: 0.1}",
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for number, name in enumerate("ABC"):
        values = {
            tensor: (lbrx.normal(shape, 1, tensor) + lbrx.normal(shape, number + 2, tensor) * 0.05).to("bf16")
            for tensor, shape in SHAPES.items()
        }
        lbrx.save(folder / f"{name}.safetensors", values)
    return folder


def recipe(models: Path, method: str) -> str:
    text = METHODS[method]
    for number, name in enumerate("ABC"):
        path = models / f"{name}.safetensors"
        text = text.replace(f"{{{name.lower()}}}", f"{{model: {path}, parameters: {{weight: 0.{number + 3}}}}}")
        text = text.replace(f"model: {name}", f"model: {path}")
    return f"{text}\ndtype: bfloat16\n"


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("method", [name for name in METHODS if name != "della"])
def test_merges_write_the_same_bytes(method: str, models: Path, tmp_path: Path) -> None:
    text = recipe(models, method)
    lbrx.merge(text, tmp_path / "cpu", seed=3)
    with on_metal() as counts:
        lbrx.merge(text, tmp_path / "metal", seed=3)
    assert files(tmp_path / "metal") == files(tmp_path / "cpu")
    assert counts.dispatches >= len(SHAPES)


def test_a_linear_merge_is_one_dispatch_for_each_tensor_and_copies_nothing(models: Path, tmp_path: Path) -> None:
    with on_metal() as counts:
        lbrx.merge(recipe(models, "linear"), tmp_path / "out")
    assert counts.dispatches == len(SHAPES)
    assert counts.copied_bytes == 0
    assert counts.wrapped_bytes == counts.read_bytes == 3 * MODEL_BYTES
    assert counts.written_bytes == counts.returned_bytes == MODEL_BYTES


def test_buffers_are_used_again_and_the_second_start_compiles_nothing(models: Path, tmp_path: Path) -> None:
    starts = [MetalContext(driver(), store=ArtifactStore(tmp_path / "cache")) for _ in range(2)]
    for number, context in enumerate(starts):
        with using_metal(context), lbrx.using(device="metal", threads=1):
            lbrx.merge(recipe(models, "linear"), tmp_path / f"out{number}")
        pool = context.pool.statistics()
        assert pool.misses <= 2  # a layer and the norm
        assert (pool.hits + pool.misses, pool.lent_bytes) == (len(SHAPES), 0)
        later = len(SHAPES) - 2
        assert pool.hits >= 0.95 * later
    assert [context.shaders.statistics.compiled for context in starts] == [1, 0]
    assert starts[1].shaders.statistics.loaded == 1


def test_the_command_line(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LBRX_METAL_DRIVER", "emulated")
    monkeypatch.setattr("lbrx.devices.metal.context.current._context", None)
    monkeypatch.setattr("lbrx.engine.device._warned", set())
    for method in ("task_arithmetic", "della"):  # della ranks elements along rows, which is left to the CPU
        path = tmp_path / f"{method}.yml"
        path.write_text(recipe(models, method))
        for device in ("cpu", "metal"):
            out = tmp_path / f"{device}_{method}"
            assert run(["merge", str(path), str(out), "--device", device, "-q" if device == "cpu" else "--json"]) == 0
        assert files(tmp_path / f"metal_{method}") == files(tmp_path / f"cpu_{method}")
        printed = capsys.readouterr()
        warned = [
            event["message"] for event in map(json.loads, printed.out.splitlines()) if event["event"] == "warning"
        ]
        reasons = ["computed partly on the CPU: the Metal backend cannot rank along rows"] if method == "della" else []
        assert warned == reasons
        assert printed.err == ""
    assert run(["merge", str(path), str(tmp_path / "out"), "--device", "gpu"]) == 1
    assert "unknown device 'gpu'; expected one of cpu, metal, numpy" in capsys.readouterr().err
    assert run(["merge", str(path), str(tmp_path / "out"), "--device", "metal", "--cluster", "auto"]) == 1
    assert "--device metal is for this machine" in capsys.readouterr().err


def test_a_machine_without_metal_is_told_before_anything_is_written(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("LBRX_METAL_DRIVER", raising=False)
    monkeypatch.setattr("lbrx.devices.metal.context.current._context", None)
    monkeypatch.setattr("sys.platform", "linux")
    (tmp_path / "recipe.yml").write_text(recipe(models, "linear"))
    assert run(["merge", str(tmp_path / "recipe.yml"), str(tmp_path / "out"), "--device", "metal"]) == 1
    assert "there is no Metal on this machine" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.yml"]
