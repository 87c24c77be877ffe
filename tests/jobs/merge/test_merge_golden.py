"""The 33 recipes that mergekit 0.1.5 ran, through ``lbrx.merge``: the same tensors and the same config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file

import support
from lbrx.jobs.merge.merge import merge

GOLDEN = support.GOLDEN / "mergekit"
Array = npt.NDArray[Any]
RECIPES = sorted(path.stem for path in (GOLDEN / "recipes").glob("*.yml"))
ITERATIVE = ("karcher", "multislerp", "arcee_fusion")  # their results hang on sums that mergekit takes in float32
# arcee_fusion keeps what is above a threshold: elements at the threshold are kept or dropped by mergekit's rounding.


def test_there_are_33_recipes() -> None:
    assert len(RECIPES) == 33


@pytest.mark.parametrize("name", RECIPES)
def test_merge_equals_mergekit(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(GOLDEN)
    result = merge(f"recipes/{name}.yml", tmp_path / "out", sync=False)
    found = load_file(tmp_path / "out" / "model.safetensors")
    expected = load_file(GOLDEN / "expected" / f"{name}.safetensors")
    assert sorted(found) == sorted(expected)
    assert result.tensors == len(expected)
    assert result.nonfinite == {}
    uncertain = 2e-3 if name == "arcee_fusion" else 0.0
    for tensor, values in expected.items():
        _assert_close(tensor, found[tensor], values, 2e-5 if name.startswith(ITERATIVE) else 1e-6, uncertain)
    _assert_config(tmp_path / "out" / "config.json", GOLDEN / "expected" / f"{name}.config.json")


def _assert_close(tensor: str, found: Array, expected: Array, tolerance: float, uncertain: float) -> None:
    """Equal within the tolerance, but for the share of elements that is uncertain."""
    assert found.dtype == expected.dtype, tensor
    assert found.shape == expected.shape, tensor
    if found.dtype == ml_dtypes.bfloat16:
        steps = np.abs(_sortable(found) - _sortable(expected))
        assert steps.max() <= 1, tensor
        return
    limit = tolerance * (np.abs(expected) + np.abs(expected).max())
    wrong = np.abs(found - expected) > limit
    assert wrong.mean() <= uncertain, tensor


def _sortable(values: Array) -> Array:
    """The numbers of bf16 values when all of them are counted from the lowest to the highest."""
    bits = values.view(np.int16).astype(np.int32)
    return np.where(bits < 0, -(bits & 0x7FFF), bits)


def _assert_config(found_path: Path, expected_path: Path) -> None:
    """The keys that mergekit's output was recorded for; it calls the type ``dtype``, as newer transformers do."""
    found, expected = json.loads(found_path.read_text()), json.loads(expected_path.read_text())
    for key in ("num_hidden_layers", "vocab_size", "tie_word_embeddings"):
        assert found[key] == expected[key], key
    assert (found.get("dtype") or found.get("torch_dtype")) == expected["dtype"]
