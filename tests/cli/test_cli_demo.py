"""`lbrx demo`: its numbers are right, and its files are what it says."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from cli_running import lbrx_command
from safetensors.numpy import load_file

import lbrx
from lbrx import demo


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[lbrx.Checkpoint, lbrx.Checkpoint]:
    directory = tmp_path_factory.mktemp("demo")
    base = lbrx.open(demo.write_model(directory / "base", demo.base_tensors()))
    return base, lbrx.open(demo.write_model(directory / "tuned", demo.tuned_tensors(base)))


def test_the_models_are_whole_llama_models(models: tuple[lbrx.Checkpoint, lbrx.Checkpoint]) -> None:
    from lbrx.architectures import check_names, check_shapes, find_architecture

    for model in models:
        assert model.config is not None
        llama = find_architecture(model.config)
        assert check_names(llama, model.config, list(model)) == []
        assert check_shapes(llama, model.config, {name: tensor.shape for name, tensor in model.items()}) == []


def test_layer_changes_are_those_of_numpy(models: tuple[lbrx.Checkpoint, lbrx.Checkpoint]) -> None:
    base, tuned = models
    changes = demo.layer_changes(base, tuned)
    assert [change.layer for change in changes] == list(range(demo.LAYERS))
    for change in changes:
        names = [name for name in base if name.startswith(f"model.layers.{change.layer}.")]
        before = np.concatenate([base[name].numpy().astype(np.float64).ravel() for name in names])
        after = np.concatenate([tuned[name].numpy().astype(np.float64).ravel() for name in names])
        assert change.difference == pytest.approx(np.linalg.norm(after - before), rel=1e-6)
        assert change.relative == pytest.approx(np.linalg.norm(after - before) / np.linalg.norm(before), rel=1e-6)
    assert changes[0].difference < changes[-1].difference


def test_wrong_elements_are_counted(models: tuple[lbrx.Checkpoint, lbrx.Checkpoint], tmp_path: Path) -> None:
    base, tuned = models
    lbrx.save(tmp_path / "blend.safetensors", demo.blended(base, tuned, 0.5))
    blend = lbrx.open(tmp_path / "blend.safetensors")
    assert demo.differing_elements(blend, base, tuned, 0.5) == 0
    assert demo.differing_elements(blend, base, tuned, 0.25) > 1_000_000


def test_the_command_writes_a_blend_of_its_two_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = lbrx_command(capsys, "demo", "--output", tmp_path / "out")
    assert (outcome.code, outcome.err) == (0, "")
    assert "bit for bit" in outcome.out
    assert "the same values from all 39 tensors" in outcome.out
    base, tuned = (load_file(tmp_path / "out" / name / "model.safetensors") for name in ("base", "tuned"))
    blend = load_file(tmp_path / "out" / "blend.safetensors")
    name = "model.layers.2.mlp.up_proj.weight"
    expected = np.float32(0.6) * base[name].astype(np.float32) + np.float32(0.4) * tuned[name].astype(np.float32)
    np.testing.assert_array_equal(blend[name], expected.astype(ml_dtypes.bfloat16))
    assert blend.keys() == base.keys() == demo.llama_shapes().keys()
