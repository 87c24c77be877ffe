"""Angles between tensors, from the products of all pairs of them: one pass for all, then arithmetic on numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lbrx.tensors.creation import evaluate, where
from lbrx.tensors.tensor import Tensor


def pairwise_dots(tensors: Sequence[Tensor], axis: int | None = None) -> list[list[Tensor]]:
    """The matrix of dot products, over whole tensors or along rows (``axis=-1``, which stays as an axis of size 1).

    >>> from lbrx import tensor
    >>> a, b = tensor([1.0, 2.0]), tensor([3.0, 4.0])
    >>> [[float(dot) for dot in row] for row in pairwise_dots([a, b])]
    [[5.0, 11.0], [11.0, 25.0]]
    """
    rows: list[list[Tensor]] = []
    for i, left in enumerate(tensors):
        known = [rows[j][i] for j in range(i)]
        rows.append(known + [left.dot(right, axis, keepdims=axis is not None) for right in tensors[i:]])
    return rows


def gram_matrix(tensors: Sequence[Tensor]) -> npt.NDArray[np.float64]:
    """The dot products of all pairs of tensors, computed now.

    >>> from lbrx import tensor
    >>> gram_matrix([tensor([1.0, 2.0]), tensor([3.0, 4.0])])
    array([[ 5., 11.],
           [11., 25.]])
    """
    values = evaluate(*(dot for row in pairwise_dots(tensors) for dot in row))
    return np.array(values, np.float64).reshape(len(tensors), len(tensors))


def slerp_coefficients(cosine: Tensor, t: float, is_straight: Tensor) -> tuple[Tensor, Tensor]:
    """What two tensors are multiplied with to go the share ``t`` of the arc between them.

    Where ``is_straight`` the way is a straight line.

    >>> from lbrx import tensor
    >>> cosine = tensor([0.0, 1.0])
    >>> [part.numpy().round(3).tolist() for part in slerp_coefficients(cosine, 0.25, cosine > 0.5)]
    [[0.924, 0.75], [0.383, 0.25]]
    """
    angle = cosine.clip(-1.0, 1.0).acos()
    sine = angle.sin()
    first = where(is_straight, 1.0 - t, (angle * (1.0 - t)).sin() / sine)
    second = where(is_straight, t, (angle * t).sin() / sine)
    return first, second
