"""Models of two architectures with equal tensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.cli.main import run
from support.small_models import config, tensors, write_model

RECIPE = "{merge_method: linear, models: [{model: a, parameters: {weight: 1}}, {model: b, parameters: {weight: 1}}]}"


def test_a_llama_and_a_mistral_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    a, b = tensors(1), tensors(2)
    write_model(tmp_path / "a", a, config("llama"))
    write_model(tmp_path / "b", b, config("mistral"))
    Path("recipe.yml").write_text(RECIPE)
    assert run(["merge", "recipe.yml", "out"]) == 0
    assert "b is a 'mistral' model and is merged as a 'llama' one" in capsys.readouterr().err
    for name, tensor in lbrx.open("out").items():
        np.testing.assert_allclose(tensor.numpy(), (a[name] + b[name]) / 2, atol=1e-6)
    b.pop("lm_head.weight")
    write_model(tmp_path / "c", b, config("mistral", tie_word_embeddings=True))
    Path("recipe.yml").write_text(RECIPE.replace("model: b", "model: c"))
    assert run(["merge", "recipe.yml", "other"]) == 1
    assert "the architecture of c is 'mistral', but that of a is 'llama'" in capsys.readouterr().err
