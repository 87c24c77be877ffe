"""How many passes over its inputs a tensor takes."""

from __future__ import annotations

import math
from collections.abc import Callable

from lbrx.engine.destination import ArrayDestination
from lbrx.engine.schedule import MAX_SINKS, Stages, by_space, evaluations
from lbrx.tensors.expr import MatMul
from lbrx.tensors.tensor import Tensor

SEARCH_PASSES = 3  # of a search for the k-th largest element, at most, unless very many elements are equal


def passes_of(build: Callable[[], Tensor]) -> tuple[int, bool]:
    """How many passes building and evaluating a tensor takes, and whether building it evaluates anything.

    A product that is stored first counts as a pass; one that a pass computes as it reads it does not.
    """
    evaluated: list[Stages] = []
    token = evaluations.set(evaluated)
    try:
        expr = build().expr
    finally:
        evaluations.reset(token)
    stages = Stages()
    stages.add_store(expr, ArrayDestination(expr.dtype, math.prod(expr.shape)))
    return sum(map(_passes, [*evaluated, stages])), bool(evaluated)


def _passes(stages: Stages) -> int:
    """Of each stage, the most passes over one space, and its products."""
    count = 0
    for tasks in stages.tasks.values():
        spaces = by_space(tasks).values()
        passes = [-(-len(others) // MAX_SINKS) + (SEARCH_PASSES if searches else 0) for others, searches in spaces]
        count += max(passes, default=0) + sum(isinstance(task, MatMul) for task in tasks)
    return count
