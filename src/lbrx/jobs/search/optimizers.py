"""Proposals for candidates. An optimizer asks for points of the unit cube, and is told which of them were better."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from lbrx.errors import UsageError, nearest

Point = tuple[float, ...]


class Optimizer(Protocol):
    """Proposes points and learns from their order. Equal calls lead to equal proposals."""

    def ask(self) -> list[Point]:
        """Return the next points, to be measured together; none if the search is finished."""
        ...

    def tell(self, points: Sequence[Point], scores: Sequence[float]) -> None:
        """Learn the scores of the points that were asked for; lower is better."""
        ...


class CmaEs:
    """Covariance matrix adaptation: for numbers that depend on each other. Needs the package cmaes."""

    def __init__(self, dimensions: int, first: Point, seed: int) -> None:
        cma: Any = _required("cmaes").CMA
        bounds = np.array([[0.0, 1.0]] * dimensions)
        mean = np.clip(np.array(first), 0.02, 0.98)
        size = 4 + int(3 * np.log(dimensions + 1))
        self._cma = cma(mean=_at_least_two(mean), sigma=0.25, bounds=_bounds(bounds), seed=seed, population_size=size)
        self._dimensions, self._size = dimensions, size
        self._first: Point | None = first

    def ask(self) -> list[Point]:
        if self._cma.should_stop():
            return []
        asked = [self._point(self._cma.ask()) for _ in range(self._size)]
        if self._first is not None:  # the middle of all ranges is always among the candidates
            asked[0], self._first = self._first, None
        return asked

    def _point(self, values: npt.NDArray[np.float64]) -> Point:
        return tuple(float(value) for value in values[: self._dimensions])

    def tell(self, points: Sequence[Point], scores: Sequence[float]) -> None:
        padding = (0.5,) * (2 - self._dimensions)
        limited = np.nan_to_num(np.array(scores, np.float64), posinf=1e30)
        pairs = zip(points, limited, strict=True)
        self._cma.tell([(np.array((*point, *padding)), float(score)) for point, score in pairs])


def _at_least_two(mean: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return mean if mean.size > 1 else np.array([mean[0], 0.5])  # cmaes needs two dimensions


def _bounds(bounds: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return bounds if len(bounds) > 1 else np.repeat(bounds, 2, axis=0)


class Tpe:
    """Tree-structured Parzen estimators: for choices next to numbers. Needs the package optuna."""

    def __init__(self, dimensions: int, first: Point, seed: int) -> None:
        optuna = _required("optuna")
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed, multivariate=dimensions > 1))
        self._study.enqueue_trial({str(number): value for number, value in enumerate(first)})
        self._dimensions = dimensions
        self._trials: list[Any] = []

    def ask(self) -> list[Point]:
        self._trials = [self._study.ask() for _ in range(4)]
        return [
            tuple(trial.suggest_float(str(number), 0.0, 1.0) for number in range(self._dimensions))
            for trial in self._trials
        ]

    def tell(self, points: Sequence[Point], scores: Sequence[float]) -> None:
        for trial, score in zip(self._trials[: len(points)], scores, strict=True):
            self._study.tell(trial, min(score, 1e30))


class Random:
    """Independent points, uniform over the cube: a baseline, and the best start for very rough landscapes."""

    def __init__(self, dimensions: int, first: Point, seed: int) -> None:
        self._random = np.random.Generator(np.random.Philox(seed))
        self._dimensions = dimensions
        self._first: Point | None = first

    def ask(self) -> list[Point]:
        points = [tuple(map(float, self._random.random(self._dimensions))) for _ in range(8)]
        if self._first is not None:
            points[0], self._first = self._first, None
        return points

    def tell(self, points: Sequence[Point], scores: Sequence[float]) -> None:
        pass


class Coordinates:
    """One number at a time: tries both directions, keeps what helps, and halves the step when nothing does.

    Later numbers of a recipe change first, because candidates that share their first layers are cheaper.
    """

    def __init__(self, dimensions: int, first: Point, seed: int) -> None:
        del seed  # nothing is random
        self._best, self._best_score = first, np.inf
        self._step, self._number = 0.25, dimensions
        self._dimensions, self._has_improved = dimensions, False

    def ask(self) -> list[Point]:
        if not np.isfinite(self._best_score):
            return [self._best]
        for _ in range(64 * self._dimensions):
            self._number -= 1
            if self._number < 0:
                if not self._has_improved:
                    self._step /= 2
                self._number, self._has_improved = self._dimensions - 1, False
            if self._step < 1e-4:
                return []
            moved = [min(max(self._best[self._number] + sign * self._step, 0.0), 1.0) for sign in (-1, 1)]
            points = [self._with(value) for value in moved if value != self._best[self._number]]
            if points:
                return points
        return []

    def _with(self, value: float) -> Point:
        return (*self._best[: self._number], value, *self._best[self._number + 1 :])

    def tell(self, points: Sequence[Point], scores: Sequence[float]) -> None:
        place = int(np.argmin(scores))
        if scores[place] < self._best_score:
            self._has_improved = bool(np.isfinite(self._best_score))
            self._best, self._best_score = tuple(points[place]), float(scores[place])


class Quadratic:
    """A quadratic model of the scores, fitted to the best points: few candidates for few, smooth numbers.

    The next points are the minimum of the model within reach of the best point, and one point at random there.
    """

    def __init__(self, dimensions: int, first: Point, seed: int) -> None:
        self._random = np.random.Generator(np.random.Philox(seed))
        self._dimensions, self._reach = dimensions, 0.5
        self._points: list[Point] = []
        self._scores: list[float] = []
        moves = [(number, sign) for number in range(dimensions) for sign in (-0.25, 0.25)]
        self._queue: list[Point] = [first, *(_moved(first, number, sign) for number, sign in moves)]

    def ask(self) -> list[Point]:
        if self._queue:
            asked, self._queue = self._queue, []
            return asked
        if self._reach < 1e-3:
            return []
        best = np.array(self._points[int(np.argmin(self._scores))])
        unit = max(self._reach, 0.05)
        coefficients = self._fitted(best, unit)
        nearby = self._random.uniform(-1, 1, (2048, self._dimensions))
        chosen = best
        for reach in (self._reach, self._reach / 8, self._reach / 64):  # finer and finer around the minimum
            points = np.clip(np.vstack([chosen, chosen + nearby * reach]), 0.0, 1.0)
            chosen = points[int(np.argmin(_quadratic_terms((points - best) / unit) @ coefficients))]
        explored = np.clip(best + nearby[0] * self._reach, 0.0, 1.0)
        return [tuple(float(value) for value in point) for point in (chosen, explored)]

    def _fitted(self, best: npt.NDArray[np.float64], unit: float) -> npt.NDArray[np.float64]:
        """Coefficients by least squares; far and bad points count less, and curvature is kept small if unknown."""
        points, scores = np.array(self._points), np.array(self._scores)
        order = np.argsort(scores, kind="stable")[: 3 * (self._dimensions + 1) * (self._dimensions + 2)]
        offsets, values = (points[order] - best) / unit, scores[order]
        weights = 1.0 / (1.0 + (np.linalg.norm(offsets, axis=1) / 2) ** 2)
        terms = _quadratic_terms(offsets)
        scale = max(float(values.std()), 1e-12)
        ridge = np.eye(terms.shape[1]) * 1e-6 * weights.sum()
        ridge[: self._dimensions + 1] = 0.0
        left = terms.T @ (terms * weights[:, None]) + ridge
        solution: npt.NDArray[np.float64] = np.linalg.lstsq(left, terms.T @ (weights * values / scale), rcond=None)[0]
        return solution * scale

    def tell(self, points: Sequence[Point], scores: Sequence[float]) -> None:
        before = min(self._scores, default=np.inf)
        self._points += [tuple(point) for point in points]
        self._scores += [min(score, 1e30) for score in scores]
        if np.isfinite(before):
            self._reach *= 0.6 if min(scores) >= before else 0.9


def _moved(point: Point, number: int, distance: float) -> Point:
    value = min(max(point[number] + distance, 0.0), 1.0)
    return (*point[:number], value, *point[number + 1 :])


def _quadratic_terms(offsets: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """1, the numbers, and their products of two."""
    count = offsets.shape[1]
    pairs = [(first, second) for first in range(count) for second in range(first, count)]
    products = [offsets[:, first] * offsets[:, second] for first, second in pairs]
    return np.stack([np.ones(len(offsets)), *offsets.T, *products], axis=1)


class Soup:
    """Greedy soup: the best number alone at its maximum, then the others in their order, kept if they help.

    For weights of models in a range that begins at 0.
    """

    def __init__(self, dimensions: int, first: Point, seed: int) -> None:
        del first, seed
        self._dimensions = dimensions
        self._order: list[int] = []
        self._best: Point = ()
        self._best_score = np.inf

    def ask(self) -> list[Point]:
        if not self._best:
            numbers = range(self._dimensions)
            return [tuple(float(number == other) for other in numbers) for number in numbers]
        if not self._order:
            return []
        added = self._order.pop(0)
        return [tuple(1.0 if number == added else value for number, value in enumerate(self._best))]

    def tell(self, points: Sequence[Point], scores: Sequence[float]) -> None:
        if not self._best:
            ranked = np.argsort(scores, kind="stable").tolist()
            self._best, self._best_score, self._order = tuple(points[ranked[0]]), scores[ranked[0]], ranked[1:]
        elif scores[0] < self._best_score:
            self._best, self._best_score = tuple(points[0]), scores[0]


OPTIMIZERS: dict[str, Callable[[int, Point, int], Optimizer]] = {
    "cma": CmaEs,
    "tpe": Tpe,
    "quadratic": Quadratic,
    "coordinate": Coordinates,
    "random": Random,
    "soup": Soup,
}
"""The optimizers by name."""


FEW_NUMBERS = 6
"""Up to so many numbers are searched with a quadratic model by default."""


def make_optimizer(name: str, dimensions: int, first: Point, seed: int, *, has_choices: bool = False) -> Optimizer:
    """Return a new optimizer that begins near a point. ``auto`` is the one that suits the numbers.

    >>> type(make_optimizer("auto", 2, (0.5, 0.5), 0)).__name__
    'Quadratic'
    """
    if name == "auto":
        name = "tpe" if has_choices else "quadratic" if dimensions <= FEW_NUMBERS else "cma"
    if name not in OPTIMIZERS:
        raise UsageError(
            f"unknown optimizer {name!r}; expected one of {', '.join(OPTIMIZERS)}{nearest(name, OPTIMIZERS)}"
        )
    return OPTIMIZERS[name](dimensions, first, seed)


def _required(package: str) -> Any:
    try:
        return import_module(package)
    except ImportError as error:
        raise UsageError(
            f"this optimizer needs the package {package}; install it with: pip install 'lbrx[search]', "
            "or use the optimizer 'coordinate' or 'random'"
        ) from error
