"""Orthogonal matching pursuit: vectors as combinations of a few of many points.

Each step adds the point that has the largest product with what is left of a vector, and then solves for the best
combination of all chosen points. The products with all points are computed in blocks of rows that depend on the sizes
alone, so the choice does not depend on the number of threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.engine.blas import in_pieces
from lbrx.jobs.lora.svd import RowBlocks

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]

_PIECE_ROWS = 1024  # that one thread multiplies at a time
_LEAST_LENGTH = 1e-6  # relative to the vector: shorter remainders are rounding errors


class Pursuit:
    """The pursuit of a batch of vectors; ``points`` are the rows of a matrix that is read in blocks."""

    def __init__(self, points: RowBlocks, targets: Floats, count: int) -> None:
        self._points, self._targets, self._count = points, targets, count
        batch, columns = targets.shape
        self._basis = np.zeros((batch, count, columns), np.float32)  # orthonormal rows
        self._triangle = np.zeros((batch, count, count), np.float64)  # chosen points in terms of the basis
        self._chosen: Numbers = np.full((batch, count), -1, np.int64)
        self._lengths = np.sqrt(np.einsum("ij,ij->i", targets, targets, dtype=np.float64))
        self._rest = targets.copy()
        self._is_done = self._lengths == 0

    def run(self, atoms_of: Any) -> tuple[Numbers, Doubles]:
        """Return the numbers of the chosen points, -1 if fewer are enough, and their coefficients.

        ``atoms_of`` returns points by their numbers.
        """
        for step in range(self._count):
            if self._is_done.all():
                break
            best = self._best_points()
            self._add(step, best, atoms_of(best))
        return self._chosen, self._coefficients()

    def _best_points(self) -> Numbers:
        """Return for each vector the point that has the largest product with its rest; the first one of several."""
        batch = len(self._rest)
        best, largest = np.zeros(batch, np.int64), np.full(batch, -1.0, np.float32)
        for first_row, block in self._points.walk():
            pieces = -(-len(block) // _PIECE_ROWS)
            numbers, values = np.zeros((pieces, batch), np.int64), np.zeros((pieces, batch), np.float32)

            def multiply(
                first: int,
                stop: int,
                first_row: int = first_row,
                block: Floats = block,
                numbers: Numbers = numbers,
                values: Floats = values,
            ) -> None:
                products = np.abs(self._rest @ block[first:stop].T)
                start = first_row + first
                is_here = (self._chosen >= start) & (self._chosen < first_row + stop)
                rows, steps = np.nonzero(is_here)
                products[rows, self._chosen[rows, steps] - start] = -1
                piece, own = first // _PIECE_ROWS, products.argmax(axis=1)
                numbers[piece], values[piece] = start + own, products[np.arange(batch), own]

            in_pieces(len(block), _PIECE_ROWS, multiply)
            for number, value in zip(numbers, values, strict=True):
                is_larger = value > largest
                best[is_larger], largest[is_larger] = number[is_larger], value[is_larger]
        return best

    def _add(self, step: int, points: Numbers, atoms: Floats) -> None:
        """Extend the basis by the chosen points, and subtract the new direction from the rest."""
        direction = atoms.astype(np.float64)
        lengths = np.linalg.norm(direction, axis=1)
        for _ in range(2 if step else 0):  # the second time removes the rounding errors of the first
            basis = self._basis[:, :step]
            parts = np.matmul(basis, direction[:, :, None].astype(np.float32))[:, :, 0]
            self._triangle[:, :step, step] += parts
            direction -= np.matmul(parts[:, None, :], basis)[:, 0]
        rest = np.linalg.norm(direction, axis=1)
        is_new = ~self._is_done & (rest > _LEAST_LENGTH * lengths)
        self._is_done |= ~is_new
        self._triangle[:, step, step] = np.where(is_new, rest, 1)
        self._triangle[~is_new, :step, step] = 0
        unit = np.where(is_new, 1 / np.where(rest > 0, rest, 1), 0)
        self._basis[:, step] = direction * unit[:, None]
        self._chosen[:, step] = np.where(is_new, points, -1)
        parts = np.einsum("ij,ij->i", self._basis[:, step], self._rest, dtype=np.float64)
        self._rest = (self._rest - parts[:, None] * self._basis[:, step]).astype(np.float32)
        left = np.sqrt(np.einsum("ij,ij->i", self._rest, self._rest, dtype=np.float64))
        self._is_done |= left <= _LEAST_LENGTH * self._lengths

    def _coefficients(self) -> Doubles:
        parts = np.einsum("ijk,ik->ij", self._basis, self._targets, dtype=np.float64)
        triangle = self._triangle + np.eye(self._count) * (self._triangle == 0)  # steps that were not made
        solved: Doubles = np.linalg.solve(triangle, parts[:, :, None])[:, :, 0]
        return np.where(self._chosen >= 0, solved, 0.0)
