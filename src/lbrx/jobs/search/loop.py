"""The loop of a search: ask for candidates, measure them on more and more of the texts, tell the optimizer.

Successive halving: all candidates of a generation are measured on a small share of the texts, and the best of them on
the next, larger share. The optimizer is told the score on all texts, which is estimated for candidates that dropped
out: by how much they were worse than the best one on the same share.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import UsageError
from lbrx.jobs.search.journal import Journal, Measurement
from lbrx.jobs.search.objectives import combined
from lbrx.jobs.search.optimizers import Optimizer, Point
from lbrx.jobs.search.settings import SearchSettings
from lbrx.jobs.search.space import Space, Value

Task = tuple[str, float]
"""A recipe, and the share of the texts to measure it on."""
Run = Callable[[Sequence[Task]], Iterable[Mapping[str, float]]]
"""Measures tasks and yields their figures in order."""

_VIOLATION = 1e6


@dataclass(slots=True)
class Trial:
    """A candidate with its figures on the rungs that it reached."""

    number: int
    values: tuple[Value, ...]
    measured: list[Measurement] = field(default_factory=list)

    @property
    def figures(self) -> Mapping[str, float]:
        """The figures on the largest share of the texts."""
        return self.measured[-1].figures


class SearchLoop:
    """Runs a search; ``best`` and ``trials`` are valid after every measurement."""

    def __init__(
        self, settings: SearchSettings, space: Space, optimizer: Optimizer, journal: Journal, run: Run
    ) -> None:
        self.settings, self.space = settings, space
        self._optimizer, self._journal, self._run = optimizer, journal, run
        self.trials: list[Trial] = []
        self.best: Trial | None = None
        self.on_measured: Callable[[SearchLoop], None] | None = None

    def search(self, candidates: int, deadline: float = math.inf) -> None:
        """Try so many candidates, or as many as there is time for until a moment of ``time.monotonic``."""
        while len(self.trials) < candidates:
            points = self._optimizer.ask()
            if not points:
                return
            generation = [self._trial(point) for point in points[: candidates - len(self.trials)]]
            scores = self._halved(generation, deadline)
            if scores is None or len(generation) < len(points):
                return
            self._optimizer.tell(points, scores)

    def score(self, figures: Mapping[str, float]) -> float:
        """Return one number for the figures of a candidate; limits that are exceeded come first."""
        limits = dict(self.settings.limits)
        excess = math.fsum(figures[name] - limit for name, limit in self.exceeded(figures).items())
        aims = {name: value for name, value in figures.items() if name not in limits} or figures
        goal = combined(aims, "worst" if self.settings.goal == "worst" else "mean")
        return goal + (_VIOLATION + excess if excess > 0 else 0.0)

    def exceeded(self, figures: Mapping[str, float]) -> dict[str, float]:
        """Return the limits that figures exceed, by name."""
        return {name: limit for name, limit in self.settings.limits if figures.get(name, -math.inf) > limit}

    @property
    def finished(self) -> list[Trial]:
        """The candidates that were measured on all texts."""
        return [trial for trial in self.trials if len(trial.measured) == self.settings.rungs]

    def _trial(self, point: Point) -> Trial:
        dimensions = self.space.dimensions
        values = tuple(dimension.at(share) for dimension, share in zip(dimensions, point, strict=True))
        trial = Trial(len(self.trials), values)
        self.trials.append(trial)
        return trial

    def _halved(self, generation: Sequence[Trial], deadline: float) -> list[float] | None:
        """Return the scores of a generation on all texts, estimated for most; None if time is over."""
        rungs, eta = self.settings.rungs, self.settings.eta
        if self.best is None:  # the first candidate is what others are compared with
            for rung in range(rungs):
                if not self._measure([generation[0]], rung, deadline):
                    return None
        alive = list(generation)
        for rung in range(rungs):
            if not self._measure([trial for trial in alive if len(trial.measured) <= rung], rung, deadline):
                return None
            if rung < rungs - 1:
                alive = self._survivors(alive, rung, math.ceil(len(alive) / eta))
                alive = [trial for trial in alive if self._may_be_best(trial, rung)]
        return [self._told(trial, generation) for trial in generation]

    def _may_be_best(self, trial: Trial, rung: int) -> bool:
        """Whether a candidate is better than the best one on the same share of the texts."""
        if self.settings.goal == "pareto" or self.best is None or trial is self.best:
            return True
        return self.score(trial.measured[rung].figures) < self.score(self.best.measured[rung].figures)

    def _survivors(self, trials: Sequence[Trial], rung: int, count: int) -> list[Trial]:
        ranked = sorted(trials, key=lambda trial: (self._rank(trial, trials, rung), trial.number))
        return sorted(ranked[:count], key=lambda trial: trial.number)

    def _rank(self, trial: Trial, among: Sequence[Trial], rung: int) -> float:
        figures = trial.measured[min(rung, len(trial.measured) - 1)].figures
        if self.settings.goal != "pareto":
            return self.score(figures)
        others = [other.measured[min(rung, len(other.measured) - 1)].figures for other in among if other is not trial]
        return sum(dominates(other, figures) for other in others) + self.score(figures) * 1e-6

    def _told(self, trial: Trial, generation: Sequence[Trial]) -> float:
        if self.settings.goal == "pareto":
            pool = [*self.finished, *(other for other in generation if other not in self.finished)]
            return self._rank(trial, pool, len(trial.measured) - 1)
        assert self.best is not None
        rung = len(trial.measured) - 1
        change = self.score(trial.measured[rung].figures) - self.score(self.best.measured[rung].figures)
        score = self.score(self.best.figures) + change
        return math.inf if math.isnan(score) else score  # infinity less infinity: figures that are not finite

    def _measure(self, trials: Sequence[Trial], rung: int, deadline: float) -> bool:
        """Measure candidates on a rung, or take from the journal what is known; False if time is over."""
        share = float(self.settings.eta) ** (rung + 1 - self.settings.rungs)
        missing = [trial for trial in trials if (trial.number, rung) not in self._journal.known]
        if missing and time.monotonic() > deadline:
            return False
        results = iter(self._run([(self.space.recipe(trial.values), share) for trial in missing]))
        for trial in trials:
            one = self._journal.known.get((trial.number, rung))
            if one is None:
                one = self._journal.add(trial.number, rung, trial.values, self._next(results, trial))
            elif one.values != trial.values:
                raise UsageError(
                    f"{self._journal.path}: candidate {trial.number + 1} has other values than the optimizer proposes "
                    "now; use another output, or --restart to begin again"
                )
            trial.measured.append(one)
            self._update_best(trial)
            if self.on_measured is not None:
                self.on_measured(self)
        return True

    def _next(self, results: Iterator[Mapping[str, float]], trial: Trial) -> Mapping[str, float]:
        try:
            return next(results)
        except UsageError as error:
            values = ", ".join(
                f"{dimension.name} {self.space.label(number, value)}"
                for number, (dimension, value) in enumerate(zip(self.space.dimensions, trial.values, strict=True))
            )
            raise UsageError(f"candidate {trial.number + 1} ({values}): {error}") from error

    def _update_best(self, trial: Trial) -> None:
        if len(trial.measured) < self.settings.rungs:
            return
        if self.best is None or self.score(trial.figures) < self.score(self.best.figures):
            self.best = trial


def dominates(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    """Return whether figures are nowhere worse and somewhere better than others.

    >>> dominates({"a": 1.0, "b": 2.0}, {"a": 1.0, "b": 3.0}), dominates({"a": 1.0, "b": 2.0}, {"a": 0.5, "b": 3.0})
    (True, False)
    """
    pairs = [(one[name], other[name]) for name in one]
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def pareto_front(trials: Sequence[Trial]) -> list[Trial]:
    """Return the candidates that no other one dominates, ordered by their first figure."""
    front = [trial for trial in trials if not any(dominates(other.figures, trial.figures) for other in trials)]
    return sorted(front, key=lambda trial: (*trial.figures.values(), trial.number))
