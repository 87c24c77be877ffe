"""Karcher mean: the point of a sphere whose squared arcs to all models have the least sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
import numpy.typing as npt

from lbrx.jobs.merge.methods.parameters import Limits
from lbrx.jobs.merge.methods.spherical import gram_matrix
from lbrx.jobs.merge.methods.task_vectors import weighted_sum
from lbrx.tensors.tensor import Tensor

Vector = npt.NDArray[np.float64]


def karcher(
    models: Sequence[Tensor], *, max_iter: Annotated[int, Limits(0)] = 10, tol: Annotated[float, Limits(0)] = 1e-5
) -> Tensor:
    """The spherical mean of the models' directions, as long as the mean of their lengths.

    Models of a length up to ``tol`` have no direction. Every point on the way is a combination of the models, so that
    the search needs only their dot products, which are computed when this is called.

    >>> from lbrx import tensor
    >>> karcher([tensor([2.0, 0.0]), tensor([0.0, 4.0])]).numpy().round(4)
    array([2.1213, 2.1213])
    """
    if len(models) == 1:
        return models[0]
    gram = gram_matrix(models)
    norms = np.sqrt(np.diag(gram))
    directed = np.flatnonzero(~(norms <= tol))  # a length of NaN stays, and shows in the result
    if directed.size == 0:
        return models[0] * 0.0
    own_norms = norms[directed]
    with np.errstate(all="ignore"):
        cosines = gram[np.ix_(directed, directed)] / np.outer(own_norms, own_norms)
        mean = _spherical_mean(cosines, max_iter, tol)
        weights = norms.mean() * mean / own_norms
    return weighted_sum([models[int(index)] for index in directed], weights.tolist())


def _spherical_mean(cosines: Vector, max_iter: int, tol: float) -> Vector:
    """The mean of unit vectors as a combination of them; ``cosines`` are their dot products."""
    count = len(cosines)

    def length(combination: Vector) -> float:
        return float(np.sqrt(np.maximum(combination @ cosines @ combination, 0.0)))

    mean = np.full(count, 1 / count)
    mean = np.eye(count)[0] if length(mean) < tol else mean / length(mean)
    for _ in range(max_iter):
        tangent = _mean_tangent(cosines, mean, tol)
        step = length(tangent)
        if step < tol:
            break
        mean = np.cos(step) * mean + np.sin(step) * tangent / step
        if length(mean) > tol:
            mean = mean / length(mean)
    return mean


def _mean_tangent(cosines: Vector, point: Vector, tol: float) -> Vector:
    """The mean of the tangents at a point that lead to each unit vector, as long as the arcs are."""
    dots = np.clip(cosines @ point, -1.0, 1.0)
    angles = np.arccos(dots)
    pulls = np.where(angles < tol, 0.0, angles / np.sin(angles)) / len(cosines)
    return pulls - (pulls @ dots) * point
