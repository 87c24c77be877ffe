"""Checkpoints of any kind, merged by the names of their tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import lbrx
from lbrx.cli.main import run

NAMES = {
    "a": ("blocks.0.w", "blocks.1.w", "only_a", "ab"),
    "b": ("blocks.0.w", "blocks.1.w", "blocks.2.w", "ab"),
    "c": ("blocks.0.w", "blocks.1.w", "only_c"),
}
COMMON = {"blocks.0.w", "blocks.1.w"}
LINEAR = "{merge_method: linear, parameters: {weight: 1}, models: [%s]}"
TASKS = "{merge_method: task_arithmetic, base_model: c.safetensors, parameters: {weight: 0.5}, models: [%s]}"


@pytest.fixture
def values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, npt.NDArray[Any]]]:
    monkeypatch.chdir(tmp_path)
    random, made = np.random.default_rng(1), {}
    for model, names in NAMES.items():
        made[model] = {name: random.standard_normal((3, 4)).astype(np.float32) for name in names}
        lbrx.save(tmp_path / f"{model}.safetensors", made[model])
    return made


def merged(recipe: str, models: str, out: str, tensors: str) -> dict[str, npt.NDArray[Any]]:
    listed = ", ".join(f"{{model: {model}.safetensors}}" for model in models)
    lbrx.merge(recipe % listed, out, tensors=tensors)
    return {name: tensor.numpy() for name, tensor in lbrx.open(out).items()}


def test_the_union_is_merged_from_the_models_that_have_a_tensor(values: dict[str, Any]) -> None:
    found = merged(LINEAR, "abc", "out", "union")
    assert set(found) == {name for names in NAMES.values() for name in names}
    for name, value in found.items():
        held = [tensors[name] for tensors in values.values() if name in tensors]
        np.testing.assert_allclose(value, np.mean(held, axis=0), rtol=1e-6)


def test_the_intersection_is_what_all_models_have(values: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    found = merged(LINEAR, "abc", "out", "intersection")
    assert set(found) == COMMON
    np.testing.assert_allclose(found["blocks.1.w"], np.mean([each["blocks.1.w"] for each in values.values()], axis=0))
    Path("r.yml").write_text(LINEAR % "{model: a.safetensors}, {model: c.safetensors}")
    assert run(["merge", "r.yml", "other", "--tensors", "intersection"]) == 0
    assert "3 tensors are not in all models and are left out, such as 'only_a'" in capsys.readouterr().err


def test_a_method_with_a_base(values: dict[str, Any]) -> None:
    found = merged(TASKS, "a", "out", "union")
    base = values["c"]["blocks.0.w"]
    np.testing.assert_allclose(found["blocks.0.w"], base + 0.5 * (values["a"]["blocks.0.w"] - base), atol=1e-6)
    for model, name in (("a", "only_a"), ("c", "only_c")):
        np.testing.assert_array_equal(found[name], values[model][name])
    with pytest.raises(lbrx.UsageError, match="'ab' is in 2 of 3 models, which 'task_arithmetic' cannot merge without"):
        merged(TASKS, "ab", "other", "union")


@pytest.mark.usefixtures("values")
def test_mistakes() -> None:
    with pytest.raises(lbrx.UsageError, match="tensors is 'all'; expected one of union, intersection"):
        merged(LINEAR, "ab", "out", "all")
    with pytest.raises(lbrx.UsageError, match=r"b\.safetensors has 3 layers"):
        lbrx.merge(LINEAR % "{model: a.safetensors}, {model: b.safetensors}", "out")
