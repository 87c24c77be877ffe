"""A vision-language model with another language model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lbrx
from lbrx.errors import LbrxError
from lbrx.models.inference import open_model
from support.cli_running import lbrx_command
from support.family_goldens import golden
from support.vision_language import NAME, write_language_model, write_vision_language


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("insert")
    return write_language_model(folder / "text"), write_vision_language(folder / "parent")


def test_the_language_model_is_the_new_one_and_the_rest_that_of_the_parent(
    models: tuple[Path, Path], tmp_path: Path
) -> None:
    text, parent = models
    warnings: list[str] = []
    lbrx.insert(text, parent, tmp_path / "out", planned=lambda plan: warnings.extend(plan.warnings))
    made = lbrx.open(tmp_path / "out")
    a, b = golden(NAME).arrays(), golden(NAME).arrays(1)
    assert list(made) == list(lbrx.open(parent))
    for name, tensor in made.items():
        expected = b if name.startswith("language_model.") else a
        assert tensor.numpy().tobytes() == expected[name].tobytes(), name
    assert made.config == golden(NAME).config
    assert warnings == []
    ids = golden(NAME).ids
    np.testing.assert_array_equal(open_model(tmp_path / "out").logits(ids), open_model(text).logits(ids))


def test_types_are_those_of_the_parent_and_merges_can_be_inserted(models: tuple[Path, Path], tmp_path: Path) -> None:
    text, parent = models
    lbrx.convert(parent, tmp_path / "half", type="bf16")
    other = write_language_model(tmp_path / "other", 2)
    inputs = f"[{{model: {text}}}, {{model: {other}}}]"
    lbrx.merge(f"{{merge_method: linear, parameters: {{weight: 1}}, models: {inputs}}}", tmp_path / "merged")
    lbrx.insert(tmp_path / "merged", tmp_path / "half", tmp_path / "out", max_shard_bytes="100KB")
    made = lbrx.open(tmp_path / "out")
    assert {tensor.dtype.name for tensor in made.values()} == {"bf16"}
    name = "model.layers.3.mlp.up_proj.weight"
    expected = lbrx.open(tmp_path / "merged")[name].to("bf16")
    assert made[f"language_model.{name}"].numpy().tobytes() == expected.numpy().tobytes()


def changed(folder: Path, text: Path, change: Any, **config: Any) -> Path:
    folder.mkdir()
    tensors = dict(lbrx.open(text))
    change(tensors)
    lbrx.save(folder / "model.safetensors", tensors)
    values = json.loads((text / "config.json").read_text()) | config
    (folder / "config.json").write_text(json.dumps(values))
    return folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x.pop("model.norm.weight"), "has no tensor 'language_model.model.norm.weight'"),
        (
            lambda x: x.update({"model.norm.weight": lbrx.full((8,), 1.0, "f32")}),
            r"'language_model.model.norm.weight' has shape \(8,\), expected \(64,\)",
        ),
        (
            lambda x: x.update({"model.norm.weight": lbrx.full((64,), 1, "i32")}),
            "'language_model.model.norm.weight' is i32, expected floating-point values",
        ),
        (
            lambda x: x.update({"model.layers.9.mlp.up_proj.weight": lbrx.full((2, 2), 1.0, "f32")}),
            "there is no tensor for its 'language_model.model.layers.9.mlp.up_proj.weight'",
        ),
    ],
)
def test_a_model_that_does_not_fit_is_one_error(
    models: tuple[Path, Path], tmp_path: Path, change: Any, message: str
) -> None:
    text, parent = models
    wrong = changed(tmp_path / "wrong", text, change)
    with pytest.raises(LbrxError, match=message):
        lbrx.insert(wrong, parent, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_other_settings_are_a_warning(models: tuple[Path, Path], tmp_path: Path) -> None:
    text, parent = models
    other = changed(tmp_path / "other", text, lambda _tensors: None, sliding_window=16)
    warnings: list[str] = []
    lbrx.insert(other, parent, tmp_path / "out", planned=lambda plan: warnings.extend(plan.warnings))
    assert warnings == [f"{other}: 'sliding_window' is 16, but {parent} has 8, which is kept"]


def test_a_parent_without_a_tower_is_an_error(models: tuple[Path, Path], tmp_path: Path) -> None:
    text, _ = models
    with pytest.raises(LbrxError, match="has no tower next to a language model"):
        lbrx.insert(text, text, tmp_path / "out")


def test_the_command_shows_a_plan_and_inserts(
    models: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = lbrx_command(capsys, "insert", *models, tmp_path / "out", "--dry-run")
    assert (result.code, (tmp_path / "out").exists()) == (0, False), result.err
    assert "tensors          143" in result.out
    result = lbrx_command(capsys, "insert", *models, tmp_path / "out")
    assert result.code == 0, result.err
    assert len(lbrx.open(tmp_path / "out")) == len(golden(NAME).shapes)
