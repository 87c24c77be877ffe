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
    "coordinate": Coordinates,
    "random": Random,
    "soup": Soup,
}
"""The optimizers by name."""


def make_optimizer(name: str, dimensions: int, first: Point, seed: int) -> Optimizer:
    """Return a new optimizer that begins near a point."""
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
