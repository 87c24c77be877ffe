"""Transplanted tokenizers next to mergekit-tokensurgeon."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from mergekit.scripts.tokensurgeon import main as tokensurgeon
from transformers import AutoModelForCausalLM, AutoTokenizer

import lbrx
from support.transplant_models import FIRST_TEXT, SECOND_TEXT, read_model, tokenizer_of, write_model

METHODS = {
    "omp": ["-a", "omp", "-k", "8"],
    "omp-20": ["-a", "omp", "-k", "20"],
    "interpolation": ["-a", "common_interpolation", "-k", "8"],
    "cosine": ["-a", "common_interpolation", "-k", "8", "-c"],
    "barycentric": ["-a", "common_interpolation", "-k", "8", "-w", "barycentric"],
    "least_squares": ["-a", "common_interpolation", "-k", "8", "-w", "least_squares"],
    "subword": ["-a", "subword"],
    "subword-sum": ["-a", "subword", "-s", "sum"],
    "subword-ends": ["-a", "subword", "-s", "first_last"],
    "mean": ["-a", "mean"],
    "zero": ["-a", "zero"],
    "scaled": ["-a", "omp", "-k", "8", "-nvs", "0.5"],
    "prefix": ["-a", "omp", "-k", "8", "-pm", "yes"],
}
_OURS = {"-a": "method", "-k": "k", "-w": "weights", "-s": "subword", "-nvs": "scale", "-pm": "prefix_match"}


def ours(options: list[str]) -> dict[str, object]:
    """The keyword arguments of lbrx for options of mergekit."""
    found: dict[str, object] = {"cosine": "-c" in options}
    for flag, value in pairwise(options):
        if flag in _OURS:
            found[_OURS[flag]] = int(value) if flag == "-k" else float(value) if flag == "-nvs" else value
    return found


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_model(folder / "model", tokenizer_of(FIRST_TEXT, 300), 1)
    write_model(folder / "tied", tokenizer_of(FIRST_TEXT, 300), 3, is_tied=True)
    write_model(folder / "donor", tokenizer_of(SECOND_TEXT, 310, end="<end>"), 2, end="<end>", columns=32)
    return folder


def mergekit(folder: Path, model: str, out: Path, options: list[str]) -> dict[str, np.ndarray]:
    tokensurgeon([str(folder / model), str(folder / "donor"), str(out), *options], standalone_mode=False)
    return read_model(out)


@pytest.mark.parametrize("name", METHODS)
def test_rows_are_those_of_mergekit(name: str, models: Path, tmp_path: Path) -> None:
    """Relative to the largest value of a row: mergekit combines in f32, lbrx rounds once."""
    theirs = mergekit(models, "model", tmp_path / "theirs", METHODS[name])
    lbrx.transplant(models / "model", models / "donor", tmp_path / "ours", **ours(METHODS[name]))
    found = read_model(tmp_path / "ours")
    assert found.keys() == theirs.keys()
    for tensor, expected in theirs.items():
        assert found[tensor].shape == expected.shape
        np.testing.assert_allclose(found[tensor], expected, rtol=0, atol=2e-5 * np.abs(expected).max(), err_msg=tensor)


def test_a_tied_model_is_that_of_mergekit_and_runs(models: Path, tmp_path: Path) -> None:
    theirs = mergekit(models, "tied", tmp_path / "theirs", ["-k", "8"])
    lbrx.transplant(models / "tied", models / "donor", tmp_path / "ours", k=8)
    found = read_model(tmp_path / "ours")
    assert found.keys() == theirs.keys()
    for tensor, expected in theirs.items():
        np.testing.assert_allclose(found[tensor], expected, rtol=0, atol=2e-5 * np.abs(expected).max(), err_msg=tensor)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "ours")
    ids = tokenizer("the other road", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        assert torch.isfinite(model(ids).logits).all()
    assert model.config.eos_token_id == tokenizer.convert_tokens_to_ids("<end>")
