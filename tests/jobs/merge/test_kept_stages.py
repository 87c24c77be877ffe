"""The named stages of a recipe, written on request."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.cli.main import run
from support.small_models import GOLDEN

RECIPE = f"""\
name: half
merge_method: linear
parameters: {{weight: 0.5}}
models: [{{model: {GOLDEN}/a}}, {{model: {GOLDEN}/b}}]
---
name: unused by half
merge_method: linear
models: [{{model: half, parameters: {{weight: 1}}}}, {{model: {GOLDEN}/base, parameters: {{weight: 3}}}}]
---
merge_method: linear
parameters: {{weight: 1}}
models: [{{model: half}}, {{model: unused by half}}]
"""
NAME = "model.layers.1.mlp.up_proj.weight"


def test_stages_are_what_the_result_was_made_from(tmp_path: Path) -> None:
    (tmp_path / "recipe.yml").write_text(RECIPE)
    assert run(["merge", str(tmp_path / "recipe.yml"), str(tmp_path / "out"), "--stages", str(tmp_path / "kept")]) == 0
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [
        ".lbrx.stages.json",
        "half",
        "unused by half",
    ]
    lbrx.merge(tmp_path / "recipe.yml", tmp_path / "plain")
    first, second, out, plain = (
        lbrx.open(tmp_path / path)[NAME].numpy() for path in ("kept/half", "kept/unused by half", "out", "plain")
    )
    a, b, base = (lbrx.open(GOLDEN / name)[NAME].numpy() for name in ("a", "b", "base"))
    np.testing.assert_allclose(first, (a + b) / 2, atol=1e-6)
    np.testing.assert_allclose(second, (first + 3 * base) / 4, atol=1e-6)
    np.testing.assert_array_equal(out, plain)
    np.testing.assert_allclose(out, (first + second) / 2, atol=1e-6)


def test_finished_stages_are_kept_and_others_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "recipe.yml").write_text(RECIPE)
    lbrx.merge(tmp_path / "recipe.yml", tmp_path / "out", stages=tmp_path / "kept")
    before = (tmp_path / "kept/half/model.safetensors").stat().st_mtime_ns
    lbrx.merge(tmp_path / "recipe.yml", tmp_path / "again", stages=tmp_path / "kept")
    assert (tmp_path / "kept/half/model.safetensors").stat().st_mtime_ns == before
    (tmp_path / "recipe.yml").write_text(RECIPE.replace("0.5", "0.25"))
    with pytest.raises(lbrx.FileError, match="half: exists and is not empty"):
        lbrx.merge(tmp_path / "recipe.yml", tmp_path / "other", stages=tmp_path / "kept")
    (tmp_path / "recipe.yml").write_text(RECIPE)
    with pytest.raises(lbrx.FileError, match="half: exists and is not empty"):  # random numbers may depend on it
        lbrx.merge(tmp_path / "recipe.yml", tmp_path / "other", stages=tmp_path / "kept", seed=1)
    lbrx.merge(tmp_path / "recipe.yml", tmp_path / "other", stages=tmp_path / "kept", seed=1, overwrite=True)
    assert (tmp_path / "kept/half/model.safetensors").stat().st_mtime_ns != before
    before = (tmp_path / "kept/half/model.safetensors").stat().st_mtime_ns
    lbrx.merge(tmp_path / "recipe.yml", tmp_path / "once more", stages=tmp_path / "kept", seed=1)
    assert (tmp_path / "kept/half/model.safetensors").stat().st_mtime_ns == before
