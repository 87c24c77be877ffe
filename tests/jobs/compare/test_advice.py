"""Advice about merges follows from the figures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.jobs.compare.advice import advice
from lbrx.jobs.compare.diff import diff_models

LAYERS = 8


def model(changes: dict[int, float], seed: int, size: float = 0.1) -> dict[str, lbrx.Tensor]:
    """A base with a random change of every layer; ``changes`` multiplies those of some layers."""
    base, random = np.random.default_rng(0), np.random.default_rng(seed)
    tensors = {}
    for layer in range(LAYERS):
        weight, change = base.standard_normal((16, 16)), random.standard_normal((16, 16))
        tensors[f"model.layers.{layer}.mlp.up_proj.weight"] = weight + size * changes.get(layer, 1.0) * change
    return {name: lbrx.tensor(values.astype(np.float32)) for name, values in tensors.items()}


BASE = model({}, 1, 0.0)
NOTHING = dict.fromkeys(range(LAYERS), 0.0)


def sentences(a: dict[str, lbrx.Tensor], b: dict[str, lbrx.Tensor], *, with_base: bool = True) -> str:
    return "\n".join(advice(diff_models(a, b, BASE if with_base else None)))


@pytest.mark.parametrize(
    ("seeds", "size", "words"),
    [
        ((1, 2), 0.1, "nearly independent (task cosine"),
        ((1, 1), 0.05, "agree in much (task cosine 1.00)"),
        ((1, 1), -0.1, "opposite directions (task cosine -1.00): their sum cancels most"),
    ],
)
def test_directions(seeds: tuple[int, int], size: float, words: str) -> None:
    assert words in sentences(model({}, seeds[0]), model({}, seeds[1], size))


def test_an_unbalanced_pair_is_named() -> None:
    assert "The change of B is 4.0 times as large as that of A" in sentences(model({}, 1), model({}, 1, 0.4))
    assert "times as large" not in sentences(model({}, 1), model({}, 2, 0.12))


def test_layers_with_conflicts_are_named() -> None:
    found = sentences(model({}, 1), model({2: -1.0, 5: -1.0}, 1))
    assert "They conflict most in layers 2 (-1.00) and 5 (-1.00)" in found
    assert "They conflict most in layer 2 (-1.00): search other weights there" in sentences(
        model({}, 1), model({2: -1.0}, 1)
    )


def test_layers_that_change_most_are_named() -> None:
    late = dict.fromkeys(range(4, LAYERS), 5.0)
    assert "of the squared change is in layers 4 to 7 of 8: the weights there matter most" in sentences(
        model(late, 1), model(late, 2)
    )
    assert "of the squared" not in sentences(model({}, 1), model({}, 2))
    without = sentences(BASE, model(dict.fromkeys(range(4), 5.0), 2), with_base=False)
    assert "of the squared difference is in layers 0 to 3 of 8" in without
    one = sentences(BASE, model({**NOTHING, 6: 1.0}, 2), with_base=False)
    assert one == "100% of the squared difference is in layer 6 of 8: the weights there matter most."
    two = sentences(BASE, model({1: 20.0, 5: 20.0}, 2), with_base=False)
    assert "of the squared difference is in layers 1 and 5 of 8" in two


def test_a_change_outside_of_the_layers_is_named() -> None:
    head = {"lm_head.weight": lbrx.full((32, 16), 1.0, "f32")}
    other = {"lm_head.weight": lbrx.full((32, 16), 2.0, "f32")}
    found = "\n".join(advice(diff_models({**BASE, **head}, {**model({}, 1), **other})))
    share = 32 * 16 / (32 * 16 + sum(float(((w - BASE[n]) ** 2).sum()) for n, w in model({}, 1).items()))
    assert share > 0.9
    assert found == f"{share:.0%} of the squared difference is in lm_head, outside the layers."


def test_layers_that_one_model_changes_are_named() -> None:
    found = sentences(model({}, 1), model({**NOTHING, 2: 1.0}, 2))
    assert "Only A changes layers 0, 1, 3, 4, 5, 6 and 7 (change of B 0): an average halves that change" in found
    assert "Only B changes" not in found
    assert "Only B changes layers 0 to 6 (change of A 0)" in sentences(model({**NOTHING, 7: 1.0}, 1), model({}, 2))


def test_what_cannot_be_merged_is_said() -> None:
    assert "B equals the base (change 0)" in sentences(model({}, 1), BASE)
    assert "All compared tensors are equal" in sentences(BASE, BASE, with_base=False)
    other = {name: lbrx.normal(weight.shape, 5, name) for name, weight in BASE.items()}
    assert "The models are unrelated (cosine" in sentences(BASE, other, with_base=False)
    assert "nearly equal (relative change" in sentences(BASE, model({}, 3, 1e-4), with_base=False)


def test_changes_that_partly_oppose_or_agree() -> None:
    assert "partly oppose each other (task cosine -0.2" in sentences(model({}, 1), mixed(-0.3))
    assert "partly agree (task cosine 0.2" in sentences(model({}, 1), mixed(0.2))


def mixed(share: float) -> dict[str, lbrx.Tensor]:
    """A change that has a part of that of seed 1."""
    one, other = model({}, 1), model({}, 2)
    return {name: BASE[name] + share * (one[name] - BASE[name]) + (other[name] - BASE[name]) for name in BASE}


def test_a_change_of_low_rank_is_named(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    base = {f"model.layers.{n}.q_proj.weight": random.standard_normal((48, 32)).astype(np.float32) for n in range(3)}
    low = {n: w + random.standard_normal((48, 2)) @ random.standard_normal((2, 32)) for n, w in base.items()}
    full = {n: w + 0.1 * random.standard_normal((48, 32)) for n, w in base.items()}
    for name, model in (("base", base), ("low", low), ("full", full)):
        tensors = {key: lbrx.tensor(np.asarray(value, np.float32)) for key, value in model.items()}
        lbrx.save(tmp_path / f"{name}.safetensors", tensors)
    paths = [tmp_path / f"{name}.safetensors" for name in ("low", "full", "base")]
    both = advice(lbrx.diff(*paths))
    assert [each for each in both if "low rank" in each] == [
        "The change of A is low rank: in q_proj of layers 0 to 2, 2 directions have 95% of the square, of 32 possible. "
        "lbrx lora extract --rank 2 makes an adapter of it."
    ]
    assert (
        "The difference is low rank: in q_proj of layers 0 to 2, 2 directions"
        in advice(lbrx.diff(paths[2], paths[0]))[-1]
    )
    assert "low rank" not in " ".join(advice(lbrx.diff(paths[2], paths[1])))
