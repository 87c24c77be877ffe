"""Optimizers find minima of simple functions, and are repeatable."""

from __future__ import annotations

import numpy as np
import pytest

from lbrx.errors import UsageError
from lbrx.jobs.search.optimizers import OPTIMIZERS, Point, make_optimizer


def minimized(name: str, dimensions: int, calls: int, target: float, seed: int = 0) -> tuple[Point, float]:
    """The best point for the squared distance from a target that is skewed over the dimensions."""
    optimizer = make_optimizer(name, dimensions, (0.5,) * dimensions, seed)
    goal = np.linspace(target, 1 - target, dimensions)
    best, best_score, asked = (), np.inf, 0
    while asked < calls and (points := optimizer.ask()):
        scores = [float(((np.array(point) - goal) ** 2).sum()) for point in points]
        asked += len(points)
        for point, score in zip(points, scores, strict=True):
            if score < best_score:
                best, best_score = point, score
        optimizer.tell(points, scores)
    return best, best_score


@pytest.mark.parametrize(
    ("name", "dimensions", "calls", "within"),
    [
        ("cma", 1, 60, 1e-4),
        ("cma", 4, 200, 1e-3),
        ("coordinate", 4, 80, 1e-3),
        ("tpe", 2, 60, 0.02),
        ("quadratic", 2, 20, 1e-4),
        ("quadratic", 4, 40, 2e-3),
        ("random", 1, 64, 0.01),
    ],
)
def test_the_minimum_is_approached(name: str, dimensions: int, calls: int, within: float) -> None:
    assert minimized(name, dimensions, calls, 0.3)[1] < within


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "soup"])
def test_the_middle_comes_first_and_equal_seeds_give_equal_points(name: str) -> None:
    asked = [make_optimizer(name, 3, (0.5, 0.4, 0.3), 7).ask() for _ in range(2)]
    assert asked[0] == asked[1]
    assert asked[0][0] == pytest.approx((0.5, 0.4, 0.3))
    assert all(0 <= value <= 1 for point in asked[0] for value in point)
    assert minimized(name, 2, 40, 0.2, seed=3) == minimized(name, 2, 40, 0.2, seed=3)


def test_a_soup_keeps_what_helps() -> None:
    optimizer = make_optimizer("soup", 3, (0.5,) * 3, 0)
    helps = {
        (0.0, 1.0, 0.0): 2.0,
        (1.0, 0.0, 0.0): 3.0,
        (0.0, 0.0, 1.0): 2.5,
        (0.0, 1.0, 1.0): 1.5,
        (1.0, 1.0, 1.0): 1.9,
    }
    asked: list[Point] = []
    while points := optimizer.ask():
        asked += points
        optimizer.tell(points, [helps[point] for point in points])
    assert asked[3:] == [(0.0, 1.0, 1.0), (1.0, 1.0, 1.0)]


def test_scores_without_a_bound_do_no_harm() -> None:
    optimizer = make_optimizer("cma", 2, (0.5, 0.5), 0)
    points = optimizer.ask()
    optimizer.tell(points, [float("inf")] * (len(points) - 1) + [1.0])
    assert all(0 <= value <= 1 for point in optimizer.ask() for value in point)


def test_an_unknown_optimizer_is_reported() -> None:
    with pytest.raises(UsageError, match="unknown optimizer 'cmaes'; expected one of cma"):
        make_optimizer("cmaes", 1, (0.5,), 0)
