"""Layers of several models, chosen at random."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import yaml

import lbrx
from lbrx.cli.main import run
from lbrx.jobs.merge.shuffle import shuffle_recipe
from support.small_models import GOLDEN

A, B = str(GOLDEN / "a"), str(GOLDEN / "b")
LAYERS = 3


def chosen(recipe: str) -> list[tuple[str, int]]:
    """The model and the layer of every layer."""
    sources = [part["sources"][0] for part in yaml.safe_load(recipe)["slices"]]
    return [(each["model"], layer) for each in sources for layer in range(*each["layer_range"])]


def test_each_layer_comes_from_one_of_the_models(tmp_path: Path) -> None:
    recipe = shuffle_recipe([A, B], [0.5, 0.5], seed=3)
    layers = chosen(recipe)
    assert [layer for _, layer in layers] == list(range(LAYERS))
    generator = random.Random(3)
    assert [model for model, _ in layers] == [generator.choices([A, B], weights=[0.5, 0.5])[0] for _ in range(LAYERS)]
    assert {model for model, _ in layers} == {A, B}
    lbrx.shuffle([A, B], tmp_path / "out", weights=[0.5, 0.5], seed=3)
    found = lbrx.open(tmp_path / "out")
    for model, layer in layers:
        name = f"model.layers.{layer}.mlp.up_proj.weight"
        np.testing.assert_array_equal(found[name].numpy(), lbrx.open(model)[name].numpy())


def test_layers_in_any_order(tmp_path: Path) -> None:
    layers = chosen(shuffle_recipe([A, B], [1.0, 0.7], seed=1, full_random=True))
    assert sorted(model for model, _ in layers) == [A] * 3 + [B] * 2
    assert all(0 <= layer < LAYERS for _, layer in layers)
    out = tmp_path / "out"
    assert run(["shuffle", A, B, "--weight", "1,0.7", "--full-random", "--seed", "1", "--out", str(out)]) == 0
    assert lbrx.open(out).config["num_hidden_layers"] == 5
    model, layer = layers[3]
    expected = lbrx.open(model)[f"model.layers.{layer}.mlp.up_proj.weight"].numpy()
    np.testing.assert_array_equal(lbrx.open(out)["model.layers.3.mlp.up_proj.weight"].numpy(), expected)


def test_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    assert run(["shuffle", A, B, "--out", out, "--print-recipe", "--dtype", "float32"]) == 0
    assert capsys.readouterr().out == shuffle_recipe([A, B], dtype="float32")
    assert run(["shuffle", A, B, "--out", out, "--dry-run"]) == 0
    assert f"slice            {{model: {A}, layer_range: [" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("weights", "message"), [([1.0], "2 models and 1 weights"), ([0.0, 0.0], "not only zeros"), ([1, -1], "at least 0")]
)
def test_weights_that_cannot_be_chosen_by(weights: list[float], message: str) -> None:
    with pytest.raises(lbrx.UsageError, match=message):
        shuffle_recipe([A, B], weights)
