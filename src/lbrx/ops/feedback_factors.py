"""Factors of Gram matrices for error feedback, for columns in the order in which they are rounded.

Later columns compensate for the rounding error of a column. So columns with large inputs come first: their errors
matter most, and most columns follow them. Formats have scales of blocks, so the columns of a block stay together, and
within it those of a sub-block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.engine.blas import one_blas_thread
from lbrx.errors import ShapeError

Floats = npt.NDArray[np.float32]
Order = npt.NDArray[np.int64]
DEFAULT_SHRINK = 0.2
_OWN_DAMPING = 0.005  # of each element of the diagonal
_DAMPING, _DRIFT_DAMPING = 0.0001, 0.1  # of the mean of the diagonal, which few large columns may dominate


class ColumnFactors:
    """A Gram matrix that is drawn towards its diagonal; see `feedback_factors`."""

    def __init__(self, gram: npt.NDArray[np.floating[Any]], shrink: float) -> None:
        if gram.ndim != 2 or gram.shape[0] != gram.shape[1]:
            raise ShapeError(f"a Gram matrix of shape {gram.shape}; expected a square")
        self._gram, self._shrink = gram, shrink
        self._latest: tuple[tuple[int, ...], Order, Floats] | None = None

    def ordered(self, widths: Sequence[int], inner: bool = True) -> tuple[Order, Floats]:
        """Return the order of columns for these widths (see `column_order`), and the factors in this order."""
        key = (*widths, int(inner))
        if self._latest is None or self._latest[0] != key:
            self._latest = None
            order = column_order(self._gram.diagonal(), widths, inner)
            self._latest = key, order, self.in_order(order)
        return self._latest[1:]

    def in_order(self, order: Order) -> Floats:
        """Return the upper triangular factor of the inverse, for columns in this order."""
        h = self._gram[np.ix_(order, order)].astype(np.float64)
        diagonal = h.diagonal().copy()
        h *= 1.0 - self._shrink
        mean = float(diagonal.mean()) or 1.0
        h[np.diag_indices_from(h)] = (1.0 + _OWN_DAMPING) * diagonal + _DAMPING * mean
        # H = R R' with R upper triangular, from the factor of H with rows and columns reversed; U = R^-1.
        with one_blas_thread():  # results must not depend on the number of threads
            reversed_factor = np.linalg.cholesky(h[::-1, ::-1])
            upper: Floats = np.linalg.inv(reversed_factor[::-1, ::-1]).astype(np.float32)
        return np.triu(upper)


def feedback_factors(gram: npt.NDArray[np.floating[Any]], shrink: float = DEFAULT_SHRINK) -> ColumnFactors:
    """Return the factors of the inverse of a Gram matrix that is drawn towards its diagonal.

    ``shrink`` is 0 for the matrix as it was measured and 1 for its diagonal: errors are then rounded without feedback.
    A column that is always zero counts a little.

    >>> feedback_factors(np.array([[4.0, 0.0], [0.0, 1.0]]), 0.0).in_order(np.arange(2)).round(3)
    array([[0.499, 0.   ],
           [0.   , 0.997]], dtype=float32)
    """
    return ColumnFactors(np.asarray(gram), shrink)


def column_order(sizes: npt.NDArray[np.floating[Any]], widths: Sequence[int], inner: bool = True) -> Order:
    """Return the columns, those of large sizes first, so that blocks of these widths stay together.

    Each width divides the one before it. A block is as large as the largest of its columns. Without ``inner``, the
    columns of the narrowest blocks keep their order.

    >>> sizes = np.array([1.0, 2.0, 9.0, 0.0, 3.0, 4.0, 5.0, 6.0])
    >>> column_order(sizes, (4, 2)).tolist()
    [2, 3, 1, 0, 7, 6, 5, 4]
    >>> column_order(sizes, (4, 2), inner=False).tolist()
    [2, 3, 0, 1, 6, 7, 4, 5]
    """
    order = np.arange(len(sizes))
    for width in (*(() if not inner else (1,)), *reversed(widths)):
        outer = _next_wider(width, widths, len(sizes))
        blocks = order.reshape(-1, outer // width, width)
        largest = sizes[blocks].max(axis=2)
        places = np.argsort(-largest, axis=1, kind="stable")
        order = np.take_along_axis(blocks, places[:, :, None], axis=1).reshape(-1)
    return order


def _next_wider(width: int, widths: Sequence[int], columns: int) -> int:
    return min((each for each in widths if each > width), default=columns)


def drift_correction(
    gram: npt.NDArray[np.floating[Any]], drift: npt.NDArray[np.floating[Any]], strength: float
) -> Floats:
    """Return M: weights W + W M make up for a part, up to 1, of a drift of their inputs.

    ``gram`` is the sum over inputs y of y y', and ``drift`` of (x - y) y', where x are the inputs that W was made for.

    >>> gram, drift = np.eye(2), np.array([[0.5, 0.0], [0.0, 0.0]])
    >>> drift_correction(gram, drift, 1.0).round(2)
    array([[0.45, 0.  ],
           [0.  , 0.  ]], dtype=float32)
    """
    h = np.array(gram, np.float64)
    h[np.diag_indices_from(h)] += _DRIFT_DAMPING * (float(h.diagonal().mean()) or 1.0)
    with one_blas_thread():
        solved: Floats = np.linalg.solve(h, np.asarray(drift, np.float64).T).T.astype(np.float32)
    return np.ascontiguousarray(solved * np.float32(strength))
