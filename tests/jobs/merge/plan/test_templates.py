"""One expression for all tensors of a kind gives what an expression for each would."""

from __future__ import annotations

import math
import threading
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from lbrx.engine.bindings import Bound, UnboundError
from lbrx.engine.destination import ArrayDestination
from lbrx.engine.schedule import evaluate_tensors
from lbrx.jobs.merge.merge import read_and_plan
from lbrx.jobs.merge.methods import Method, load_method
from lbrx.jobs.merge.plan import Plan
from lbrx.registry import METHODS
from lbrx.tensors.tensor import Tensor
from support.tiny import BF16, make_llama

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
    return read_and_plan(recipe, "out")


def values(bound: Bound) -> npt.NDArray[np.uint16]:
    output = ArrayDestination(bound.expr.dtype, math.prod(bound.expr.shape))
    evaluate_tensors([(bound, output)])
    return output.array(bound.expr.shape).view(np.uint16)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.usefixtures("models")
def test_every_method_gives_the_same_bytes(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(recipe_of(method))
    names = [job.name for job in plan.jobs]
    expected = {name: plan.tensor(name).numpy().view(np.uint16) for name in names}
    calls = count_calls(monkeypatch)
    for name in names:
        np.testing.assert_array_equal(values(plan.bound(name)), expected[name], err_msg=name)
    kinds = len({job.shape for job in plan.jobs})
    assert len(names) > 4 * kinds
    if method in LOOKS_AT_VALUES or method == "passthrough":  # which has nothing to share
        assert len(calls) == len(names) + kinds
    else:
        assert len(calls) == kinds


def count_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    calls: list[str] = []
    merge = Method.merge

    def counted(self: Method, *arguments: object) -> Tensor:
        calls.append(self.name)
        return merge(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Method, "merge", counted)
    return calls


@pytest.mark.usefixtures("models")
def test_threads_share_an_expression() -> None:
    plan = planned(recipe_of("dare_ties"))
    names = [job.name for job in plan.jobs]
    expected = {name: plan.tensor(name).numpy().view(np.uint16) for name in names}
    found: dict[tuple[int, str], npt.NDArray[np.uint16]] = {}

    def work(thread: int) -> None:
        for name in names[thread:] + names[:thread]:
            found[thread, name] = values(plan.bound(name))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 * len(names)
    for (_, name), result in found.items():
        np.testing.assert_array_equal(result, expected[name], err_msg=name)


@pytest.mark.usefixtures("models")
def test_tensors_of_one_shape_have_random_numbers_of_their_own() -> None:
    plan = planned(recipe_of("dare_linear"))
    bound = [plan.bound(f"model.layers.{layer}.mlp.up_proj.weight") for layer in range(3)]
    assert bound[0].expr is bound[1].expr is bound[2].expr
    assert len({each.bindings.key_of(0) for each in bound}) == 3


@pytest.mark.usefixtures("models")
def test_parameters_that_differ_between_layers_are_kept_apart() -> None:
    recipe = recipe_of("slerp").replace("{t: 0.3}", "{t: [0, 1]}")
    plan = planned(recipe)
    for layer, expected in ((0, "base"), (2, "a")):
        name = f"model.layers.{layer}.self_attn.q_proj.weight"
        source = next(model for model in plan.stage.models if str(model.ref) == expected)
        np.testing.assert_array_equal(values(plan.bound(name)), source.tensors[name].numpy().view(np.uint16))


def test_a_method_of_the_user_is_called_for_every_tensor(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (models / "mine.py").write_text("def first(models):\n    return models[0] * (2 if 'up' in models[0].name else 1)\n")
    plan = planned("merge_method: ./mine.py:first\nmodels: [{model: a}, {model: b}]\n")
    calls = count_calls(monkeypatch)
    bound = [plan.bound(job.name) for job in plan.jobs]
    assert len(calls) == len(bound)


@pytest.mark.usefixtures("models")
def test_what_is_kept_holds_no_memory_of_a_tensor() -> None:
    bound = planned(recipe_of("dare_ties")).bound("model.norm.weight")
    values(bound)
    assert bound.bindings.passes
    kept = [each for each, _ in bound.bindings.passes.values()]
    assert sum(len(each.leaves) for each in kept) > 4
    assert all(leaf.storage is None for each in kept for leaf in each.leaves)
    assert all(not each.scalars for each in kept)


@pytest.mark.usefixtures("models")
def test_an_unbound_expression_cannot_be_evaluated() -> None:
    expr = planned(recipe_of("linear")).bound("model.norm.weight").expr
    with pytest.raises(UnboundError):
        Tensor(expr).numpy()
