"""Mixtures of experts: a router chooses some MLPs for each token and weights their results."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lbrx.engine.recording import run_in_step
from lbrx.models.inference.weights import ExpertWeights, Floats, MlpWeights
from lbrx.ops import linear, softmax


def mixed_experts(
    values: Floats, weights: ExpertWeights, used: int, run: Callable[[Floats, MlpWeights], Floats]
) -> Floats:
    """Return the weighted sum of the ``used`` best experts of every row; each expert computes all its rows at once.

    The weights are the softmax over the chosen experts. Results are added in the order of the expert numbers.
    """
    scores = linear(values, weights.router.weight)
    mixed: Floats = run_in_step(lambda rows, ranked: _mixed(rows, ranked, weights, used, run), values, scores)
    return mixed


def _mixed(
    values: Floats, scores: Floats, weights: ExpertWeights, used: int, run: Callable[[Floats, MlpWeights], Floats]
) -> Floats:
    chosen = np.argsort(-scores, axis=1, kind="stable")[:, :used]
    shares = softmax(np.take_along_axis(scores, chosen, axis=1))
    total = np.zeros_like(values)
    for number, expert in enumerate(weights.experts):
        rows, ranks = np.nonzero(chosen == number)
        if rows.size:
            total[rows] += shares[rows, ranks, None] * run(np.ascontiguousarray(values[rows]), expert)
    return total
