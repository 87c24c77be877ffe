"""Tensors of one shape share the plan of their expressions, and each has the values of its own."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from lbrx.engine import plan_cache, schedule
from lbrx.engine.destination import ArrayDestination
from lbrx.engine.evaluate import evaluate_tensors
from lbrx.engine.fuse import Input
from lbrx.engine.schedule import Root, make_plan
from lbrx.jobs.merge.merge import read_and_plan
from lbrx.jobs.merge.methods import load_method
from lbrx.jobs.merge.plan import Plan
from lbrx.registry import METHODS
from lbrx.tensors.expr import Counter, Scalar, Source
from support.tiny import BF16, INTERMEDIATE, make_llama

UP = "model.layers.0.mlp.up_proj.weight"
LOOKS_AT_VALUES = {"karcher"}
EXTRA = {
    "nearswap": "base_model: base\nparameters: {t: 0.1}\nmodels: [{model: base}, {model: a}]",
    "slerp": "base_model: base\nparameters: {t: 0.3}\nmodels: [{model: base}, {model: a}]",
    "arcee_fusion": "base_model: base\nmodels: [{model: base}, {model: a}]",
    "passthrough": "models: [{model: a}]",
}
PAIR = "base_model: base\nmodels: [{model: a%s}, {model: b%s}]"


def recipe_of(method: str) -> str:
    spec = load_method(method).spec
    given = {"weight": "0.6", "density": "0.5"}
    parameters = ", ".join(f"{name}: {value}" for name, value in given.items() if spec.find(name) is not None)
    each = f", parameters: {{{parameters}}}" if parameters else ""
    body = EXTRA.get(method) or PAIR % (each, each)
    if spec.needs_base != "required":
        body = body.removeprefix("base_model: base\n")
    return f"merge_method: {method}\ndtype: bfloat16\n{body}\n"


@pytest.fixture
def models(folder: Path) -> Path:
    for seed, name in enumerate(("base", "a", "b")):
        make_llama(folder / name, seed, layers=3, dtype=BF16)
    return folder


def planned(recipe: str) -> Plan:
    return read_and_plan(recipe, "out", allow_code=True)


def values(plan: Plan, name: str) -> npt.NDArray[np.uint16]:
    expr = plan.tensor(name).expr
    output = ArrayDestination(expr.dtype, math.prod(expr.shape))
    evaluate_tensors([(expr, output)])
    return output.array(expr.shape).view(np.uint16)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Root]:
    """The roots of the plans that are made from now on."""
    roots: list[Root] = []

    def recorded(given: Sequence[Root]) -> schedule.Plan:
        roots.extend(given)
        return make_plan(given)

    plan_cache._plans.clear()
    monkeypatch.setattr(plan_cache, "make_plan", recorded)
    return roots


@pytest.mark.parametrize("method", [name for name in METHODS if load_method(name).spec.text_parameter is None])
@pytest.mark.usefixtures("models")
def test_tensors_of_one_shape_share_a_plan(method: str, made: list[Root]) -> None:
    plan = planned(recipe_of(method))
    names = [job.name for job in plan.jobs]
    found = {name: values(plan, name) for name in names}
    shapes = len({job.shape for job in plan.jobs})
    assert len(names) > 4 * shapes
    if method in LOOKS_AT_VALUES:  # evaluations of its own, which share plans as well
        assert len(made) <= 12 * shapes
    else:
        assert len(made) <= shapes
    for name in names:
        plan_cache._plans.clear()
        np.testing.assert_array_equal(found[name], plan.tensor(name).numpy().view(np.uint16), err_msg=name)


@pytest.mark.usefixtures("models")
def test_threads_share_an_expression() -> None:
    plan = planned(recipe_of("dare_ties"))
    names = [job.name for job in plan.jobs]
    expected = {name: plan.tensor(name).numpy().view(np.uint16) for name in names}
    found: dict[tuple[int, str], npt.NDArray[np.uint16]] = {}

    def work(thread: int) -> None:
        for name in names[thread:] + names[:thread]:
            found[thread, name] = values(plan, name)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 * len(names)
    for (_, name), result in found.items():
        np.testing.assert_array_equal(result, expected[name], err_msg=name)


@pytest.mark.usefixtures("models")
def test_tensors_of_one_shape_have_random_numbers_of_their_own(made: list[Root]) -> None:
    plan = planned(recipe_of("dare_linear"))
    base = next(model for model in plan.stage.models if str(model.ref) == "base")
    kept = []
    for layer in range(3):
        name = f"model.layers.{layer}.mlp.up_proj.weight"
        kept.append(values(plan, name) == base.tensors[name].numpy().view(np.uint16))
    assert len(made) == 1
    assert not np.array_equal(kept[0], kept[1])
    assert not np.array_equal(kept[1], kept[2])


@pytest.mark.usefixtures("models")
def test_parameters_that_differ_between_layers_are_kept_apart() -> None:
    recipe = recipe_of("slerp").replace("{t: 0.3}", "{t: [0, 1]}")
    plan = planned(recipe)
    for layer, expected in ((0, "base"), (2, "a")):
        name = f"model.layers.{layer}.self_attn.q_proj.weight"
        source = next(model for model in plan.stage.models if str(model.ref) == expected)
        np.testing.assert_array_equal(values(plan, name), source.tensors[name].numpy().view(np.uint16))


def test_a_matrix_with_the_shape_of_the_embedding_does_not_share_its_plan(folder: Path) -> None:
    for seed, name in enumerate(("base", "a", "b")):
        make_llama(folder / name, seed, layers=2, vocabulary=INTERMEDIATE, dtype=BF16)
    plan = planned(recipe_of("iso_c"))
    shared = {name: evaluated(plan, name) for name in ("model.embed_tokens.weight", UP)}
    assert plan.stage.by_name[UP].shape == plan.stage.by_name["model.embed_tokens.weight"].shape
    for name, found in shared.items():
        np.testing.assert_array_equal(found, plan.tensor(name).numpy().view(np.uint16), err_msg=name)


def evaluated(plan: Plan, name: str) -> npt.NDArray[np.uint16]:
    """The values of a tensor as a merge computes them, with a plan that tensors share."""
    job = plan.stage.by_name[name]
    output = ArrayDestination(job.dtype, math.prod(job.shape))
    evaluate_tensors([(plan.expression(name), output)])
    return output.array(job.shape).view(np.uint16)


def test_a_method_of_the_user_shares_plans(models: Path, made: list[Root]) -> None:
    (models / "mine.py").write_text("def first(models):\n    return models[0] * (2 if 'up' in models[0].name else 3)\n")
    plan = planned("merge_method: ./mine.py:first\nmodels: [{model: a}, {model: b}]\ndtype: bfloat16\n")
    source = next(model for model in plan.stage.models if str(model.ref) == "a")
    for job in plan.jobs:
        expected = (source.tensors[job.name] * (2 if "up" in job.name else 3)).to("bf16").numpy()
        np.testing.assert_array_equal(values(plan, job.name), expected.view(np.uint16), err_msg=job.name)
    assert len(made) == 1  # sizes and numbers are not part of the structure


@pytest.mark.usefixtures("models")
def test_a_plan_holds_no_memory_of_a_tensor(made: list[Root]) -> None:
    values(planned(recipe_of("dare_ties")), "model.norm.weight")
    waiting, leaves = [expr for expr, _ in made], 0
    while waiting:
        node = waiting.pop()
        assert not isinstance(node, Source | Counter)
        assert type(node) is not Scalar
        leaves += isinstance(node, Input)
        waiting += node.args
    assert leaves > 4
