"""Interpolation between the nearest of many points."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lbrx.engine.blas import in_pieces
from lbrx.jobs.lora.svd import RowBlocks

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]

_PIECE_ROWS = 1024
_LEAST_DISTANCE = 1e-6
_LEAST_PRODUCT = 1e-6


def nearest_points(points: RowBlocks, targets: Floats, count: int, *, cosine: bool) -> tuple[Numbers, Doubles]:
    """Return the numbers of the nearest points of each vector, nearest first, and their distances."""
    distances = np.empty((len(targets), points.shape[0]), np.float32)
    target_squares = np.einsum("ij,ij->i", targets, targets, dtype=np.float64)[:, None]
    for first_row, block in points.walk():

        def measure(first: int, stop: int, first_row: int = first_row, block: Floats = block) -> None:
            part = block[first:stop]
            squares = np.einsum("ij,ij->i", part, part, dtype=np.float64)
            products = (targets @ part.T).astype(np.float64)
            if cosine:
                lengths = np.maximum(np.sqrt(target_squares * squares), _LEAST_PRODUCT)
                found = 1 - products / lengths
            else:
                found = np.sqrt(np.maximum(target_squares + squares - 2 * products, 0))
            distances[:, first_row + first : first_row + stop] = found

        in_pieces(len(block), _PIECE_ROWS, measure)
    chosen = np.stack([_smallest(row, count) for row in distances])
    return chosen, np.take_along_axis(distances, chosen, axis=1).astype(np.float64)


def _smallest(values: Floats, count: int) -> Numbers:
    """Return the places of the smallest values in their order; of equal ones the first."""
    limit = np.partition(values, count - 1)[count - 1]
    below = np.flatnonzero(values < limit)
    equal = np.flatnonzero(values == limit)[: count - below.size]
    places = np.sort(np.concatenate([below, equal]))
    return places[np.argsort(values[places], kind="stable")]


def weights_of(targets: Floats, points: Floats, distances: Doubles, weighting: str, *, cosine: bool) -> Doubles:
    """Return the coefficients of the points, [batch, count, columns], that stand for each vector.

    >>> points = np.array([[[0.0, 0.0], [4.0, 0.0]]], np.float32)
    >>> target = np.array([[1.0, 0.0]], np.float32)
    >>> weights_of(target, points, np.array([[1.0, 3.0]]), "barycentric", cosine=False).round(6)
    array([[0.75, 0.25]])
    """
    if weighting == "distance_proportional":
        raw = 1 - distances if cosine else 1 / np.maximum(distances, _LEAST_DISTANCE)
        shares: Doubles = raw / np.maximum(raw.sum(axis=1, keepdims=True), _LEAST_PRODUCT)
        return shares
    wide, vectors = points.astype(np.float64), targets.astype(np.float64)
    if weighting == "least_squares":
        return np.stack([np.linalg.lstsq(part.T, vector)[0] for part, vector in zip(wide, vectors, strict=True)])
    return np.stack([_barycentric(part, vector) for part, vector in zip(wide, vectors, strict=True)])


def _barycentric(points: Doubles, vector: Doubles) -> Doubles:
    """Return the coefficients with the sum 1 whose combination is nearest to the vector."""
    count = len(points)
    system = np.zeros((count + 1, count + 1))
    system[:count, :count] = points @ points.T
    system[:count, count] = system[count, :count] = 1
    solved: Doubles = np.linalg.lstsq(system, np.append(points @ vector, 1.0))[0]
    return solved[:count]
