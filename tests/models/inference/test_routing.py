"""How experts are chosen and weighted, against formulas for one row after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import lbrx
from lbrx.errors import FormatError
from lbrx.models.architectures.config import Config
from lbrx.models.architectures.records import Experts
from lbrx.models.inference.experts import ExpertSteps, Routing, check_experts, choose
from lbrx.models.inference.mlp import MlpWeights, run_mlp
from lbrx.models.inference.weights import Matrix

Floats = npt.NDArray[np.float32]


def routing(part: Experts, used: int = 2, **options: Any) -> Routing:
    values: dict[str, Any] = {
        "is_normalized": False,
        "smallest_sum": 1e-20,
        "scale": 1.0,
        "groups": 1,
        "used_groups": 1,
        "clamp": None,
        "jitter": 0.01,
    }
    return Routing(part, used, **{**values, **options})


def scores(rows: int = 20, experts: int = 8) -> Floats:
    return np.random.default_rng(1).standard_normal((rows, experts)).astype(np.float32) * 2


def softmax(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    weights = np.exp(values - values.max())
    return np.asarray(weights / weights.sum())


def test_softmax_of_the_chosen() -> None:
    given = scores()
    chosen, shares = choose(given, None, routing(Experts()))
    for row, best, weights in zip(given, chosen, shares, strict=True):
        assert best.tolist() == sorted(range(8), key=lambda expert: -row[expert])[:2]
        np.testing.assert_allclose(weights, softmax(row[best].astype(np.float64)), rtol=1e-5)


@pytest.mark.parametrize("is_normalized", [False, True])
def test_softmax_of_all(is_normalized: bool) -> None:
    given, correction = scores(), np.linspace(-0.5, 0.5, 8).astype(np.float32)
    options = routing(Experts(scoring="softmax"), 3, is_normalized=is_normalized, scale=2.5)
    chosen, shares = choose(given, correction, options)
    for row, best, weights in zip(given, chosen, shares, strict=True):
        probabilities = softmax(row.astype(np.float64))
        assert best.tolist() == np.argsort(-(probabilities + correction))[:3].tolist()
        expected = probabilities[best] * (1 / probabilities[best].sum() if is_normalized else 1) * 2.5
        np.testing.assert_allclose(weights, expected, rtol=1e-5)


@pytest.mark.parametrize("group_score", ["best", "two_best"])
def test_only_experts_of_the_best_groups_are_chosen(group_score: Any) -> None:
    given = scores(30)
    options = routing(Experts(scoring="sigmoid", group_score=group_score), 2, groups=4, used_groups=2)
    chosen, shares = choose(given, None, options)
    for row, best, weights in zip(given, chosen, shares, strict=True):
        gates = 1 / (1 + np.exp(-row.astype(np.float64)))
        groups = gates.reshape(4, 2)
        totals = groups.max(axis=1) if group_score == "best" else groups.sum(axis=1)
        allowed = {2 * group + member for group in np.argsort(-totals)[:2] for member in (0, 1)}
        assert best.tolist() == [expert for expert in np.argsort(-gates) if expert in allowed][:2]
        np.testing.assert_allclose(weights, gates[best], rtol=1e-5)


def test_sparse_mixer_has_two_softmaxes_of_close_scores() -> None:
    given = np.array([[5.0, 4.95, 1.0, 0.99, -3.0], [2.0, -2.0, 1.99, 0.5, 1.98]], np.float32)
    chosen, shares = choose(given, None, routing(Experts(scoring="sparsemixer"), jitter=0.01))
    assert chosen.tolist() == [[0, 1], [0, 2]]
    first = [softmax(np.array([5.0, 4.95]))[0], 1.0]
    second = [softmax(np.array([2.0, 1.99, 1.98]))[0], softmax(np.array([1.99, 1.98]))[0]]
    np.testing.assert_allclose(shares, [first, second], rtol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_experts_per_tok": 9}, "9 experts of 8 are used for a token"),
        ({"n_group": 3}, "of 3 groups of 8 experts are used; expected a divisor"),
        ({"n_group": 4, "topk_group": 5}, "5 of 4 groups of 8 experts are used"),
        ({"n_group": 8, "topk_group": 4}, "the groups of experts are too small for 4 experts per token"),
        ({"n_group": 2, "topk_group": 1, "num_experts_per_tok": 5}, "the groups of experts are too small for 5"),
        ({"routed_scaling_factor": -1}, "'routed_scaling_factor' is -1; expected a number above zero"),
    ],
)
def test_impossible_numbers_are_refused(changes: dict[str, Any], message: str) -> None:
    part = Experts(count="n_routed_experts", groups="n_group", scale="routed_scaling_factor")
    values = {"n_routed_experts": 8, "num_experts_per_tok": 4, "routed_scaling_factor": 1.0, "topk_group": 1, **changes}
    config = Config(values, {"n_group": 1}, error_class=FormatError)
    with pytest.raises(FormatError, match=message):
        check_experts(part, config, {})


# -- experts that compute one token ------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [None, "q4_0", "q6_k"])
def test_experts_at_the_same_time_give_the_bytes_of_one_after_the_other(codec: str | None) -> None:
    random = np.random.default_rng(4)

    def weight(rows: int, columns: int) -> Matrix:
        values = lbrx.tensor(random.standard_normal((rows, columns)).astype(np.float32) / np.float32(16))
        return Matrix((values.to("bf16") if codec is None else values.quantize(codec)).realize())

    experts = tuple(MlpWeights((weight(256, 512), weight(256, 512)), weight(512, 256)) for _ in range(6))
    steps = ExpertSteps(experts, routing(Experts(), 3), 512)
    for chosen in ([4, 0, 5], [1, 4, 2], [4, 0, 5]):
        values = random.standard_normal((1, 512)).astype(np.float32)
        results = steps.run(values, np.array(chosen), np.ones(3, np.float32))
        assert sorted(results) == sorted(chosen)
        for number, result in results.items():
            assert result.tobytes() == run_mlp(values, experts[number]).tobytes()


def test_numbers_that_cannot_be_coded_are_computed_one_after_the_other() -> None:
    weight = Matrix(lbrx.full((256, 256), 1.0, "f32").quantize("q4_0").realize())
    steps = ExpertSteps((MlpWeights((weight, weight), weight),) * 2, routing(Experts()), 256)
    values = np.full((1, 256), np.nan, np.float32)
    results = steps.run(values, np.array([0, 1]), np.ones(2, np.float32))
    assert all(np.isnan(result).all() for result in results.values())
