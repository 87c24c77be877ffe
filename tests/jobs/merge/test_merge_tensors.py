"""`lbrx.merge_tensors` gives the values that `lbrx.merge` writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lbrx
from lbrx.errors import UsageError
from lbrx.jobs.merge.methods import load_method
from lbrx.jobs.merge.methods.parameters import REQUIRED
from lbrx.registry import METHODS
from support.tiny import make_llama

NAME = "model.layers.1.mlp.up_proj.weight"
PARAMETERS: dict[str, dict[str, Any]] = {
    "slerp": {"t": 0.3},
    "nearswap": {"t": 0.01},
    "nuslerp": {"weight": [0.4, 0.6]},
    "multislerp": {"weight": [0.4, 0.6]},
    "linear": {"weight": [0.7, 0.3], "normalize": False},
    "ties": {"weight": [1.0, 0.5], "density": [0.5, 0.7]},
    "dare_ties": {"weight": 1.0, "density": 0.5},
    "della": {"weight": 1.0, "density": 0.5, "epsilon": 0.1},
    "model_stock": {},
}


@pytest.mark.parametrize("method", PARAMETERS)
def test_values_are_those_of_a_merge(folder: Path, method: str) -> None:
    spec = load_method(method).spec
    count = spec.model_count[1] or 2
    models = [make_llama(folder / name, seed)[NAME] for seed, name in enumerate("ab"[:count])]
    base = make_llama(folder / "base", 9)[NAME] if spec.needs_base in ("required", "optional") else None
    given = PARAMETERS[method]
    listed = [{"model": name} for name in "ab"[:count]]
    recipe: dict[str, Any] = {"merge_method": method, "models": listed, "parameters": {}}
    for name, value in given.items():
        if isinstance(value, list):
            for model, each in zip(listed, value, strict=True):
                model.setdefault("parameters", {})[name] = each  # type: ignore[attr-defined]
        else:
            recipe["parameters"][name] = value
    if base is not None:
        recipe["base_model"] = "base"
    lbrx.merge(json.loads(json.dumps(recipe)), "out", seed=3, sync=False)
    merged = lbrx.merge_tensors(models, method, base=base, parameters=given, name=NAME, seed=3)
    np.testing.assert_array_equal(merged.numpy(), lbrx.open("out")[NAME].numpy())


def test_nothing_is_computed_before_values_are_needed() -> None:
    merged = lbrx.merge_tensors([lbrx.ones((4,)), lbrx.zeros((4,))], parameters={"weight": 1})
    assert "not computed yet" in repr(merged)
    assert merged.tolist() == [0.5] * 4


def test_types_of_the_inputs_and_of_the_result() -> None:
    a, b = lbrx.ones((4,), dtype="f16"), lbrx.ones((4,), dtype="bf16")
    assert lbrx.merge_tensors([a, a], parameters={"weight": 1}).dtype == "f16"
    assert lbrx.merge_tensors([a, b], parameters={"weight": 1}).dtype == "f32"
    assert lbrx.merge_tensors([a, b], parameters={"weight": 1}, dtype="bf16").dtype == "bf16"


@pytest.mark.parametrize(
    ("method", "arguments", "problem"),
    [
        ("linear", {}, "linear: the parameter 'weight' is missing"),
        ("linear", {"parameters": {"wieght": 1}}, "linear: unknown parameter 'wieght'; did you mean 'weight'?"),
        (
            "linear",
            {"parameters": {"weight": [1]}},
            "linear: 'weight' has 1 values; expected one, or one for each of 2",
        ),
        ("linear", {"parameters": {"weight": {}}}, "linear: 'weight' is a dict; expected a number or text"),
        ("linear", {"parameters": {"weight": "x"}}, "linear: 'weight' must be a number, found 'x'"),
        ("linear", {"base": np.ones(4)}, "linear takes no base; expected it among the tensors"),
        ("ties", {}, "ties needs a base; expected base=TENSOR"),
        ("slerp", {"base": np.ones(4), "parameters": {"t": 1}}, "slerp: 2 tensors; expected 1"),
    ],
)
def test_wrong_arguments(method: str, arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        lbrx.merge_tensors([np.ones(4), np.ones(4)], method, **arguments)
    assert str(caught.value) == problem


def test_means_of_integers_are_not_whole_numbers() -> None:
    merged = lbrx.merge_tensors([np.arange(3), np.arange(3) + 1], parameters={"weight": 1})
    assert merged.tolist() == [0.5, 1.5, 2.5]


def test_one_array_is_not_a_list_of_its_rows() -> None:
    with pytest.raises(UsageError, match="takes a list of tensors, found one"):
        lbrx.merge_tensors(np.ones((2, 4)), parameters={"weight": 1})


def test_no_tensors() -> None:
    with pytest.raises(UsageError, match="no tensors were given"):
        lbrx.merge_tensors([])


def test_every_method_can_be_called() -> None:
    for method in METHODS:
        spec = load_method(method).spec
        if spec.text_parameter is not None:
            with pytest.raises(UsageError, match="runs whole models on texts"):
                lbrx.merge_tensors([lbrx.ones((2, 4))] * 2, method)
            continue
        count = spec.model_count[1] or max(spec.model_count[0], 2)
        base = lbrx.ones((2, 4)) if spec.needs_base in ("required", "optional") else None
        needed = {p.name: 0.5 for p in spec.parameters if p.default is REQUIRED}
        merged = lbrx.merge_tensors(
            [lbrx.full((2, 4), i + 2.0) for i in range(count)], method, base=base, parameters=needed
        )
        assert np.isfinite(merged.numpy()).all()
