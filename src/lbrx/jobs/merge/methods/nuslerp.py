"""Spherical interpolation of two models by weight, of whole tensors, rows or columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from lbrx.jobs.merge.methods.parameters import Limits
from lbrx.jobs.merge.methods.spherical import pairwise_dots, slerp_coefficients
from lbrx.jobs.merge.methods.task_vectors import differences
from lbrx.tensors.tensor import Tensor

_LEAST_NORM = 1e-7
_LEAST_WEIGHT_SUM = 1e-6
_STRAIGHT_SQUARED_SINE = 1e-16


def nuslerp(
    models: Annotated[Sequence[Tensor], Limits(2, 2)],
    base: Tensor | None = None,
    *,
    weight: Sequence[float],
    nuslerp_flatten: bool = True,
    nuslerp_row_wise: bool = False,
) -> Tensor:
    """The point of the arc between two models that their weights say; with a base, between their differences from it.

    Without ``nuslerp_flatten`` every vector along the last axis has its own angle, or, if ``nuslerp_row_wise``, every
    vector along the first.

    >>> from lbrx import tensor
    >>> nuslerp([tensor([2.0, 0.0]), tensor([0.0, 2.0])], weight=[1.0, 3.0]).numpy().round(4)
    array([0.7654, 1.8478])
    """
    first, second = models if base is None else differences(base, models)
    weight_sum = weight[0] + weight[1]
    t = 0.5 if abs(weight_sum) < _LEAST_WEIGHT_SUM else weight[1] / weight_sum
    if nuslerp_flatten:
        cosine = _cosine(first, second, None)
    elif nuslerp_row_wise:
        cosine = _cosine_along_first_axis(first, second)
    else:
        cosine = _cosine(first, second, -1)
    is_straight = 1.0 - cosine * cosine <= _STRAIGHT_SQUARED_SINE
    from_first, from_second = slerp_coefficients(cosine, t, is_straight)
    blend = first * from_first + second * from_second
    return blend if base is None else base + blend


def _cosine(first: Tensor, second: Tensor, axis: int | None) -> Tensor:
    (first_square, dot), (_, second_square) = pairwise_dots([first, second], axis)
    return dot / (first_square.sqrt().maximum(_LEAST_NORM) * second_square.sqrt().maximum(_LEAST_NORM))


def _cosine_along_first_axis(first: Tensor, second: Tensor) -> Tensor:
    """One cosine for every place of the other axes."""
    columns = [tensor.reshape(tensor.shape[0], -1).T for tensor in (first, second)]
    return _cosine(columns[0], columns[1], -1).reshape(1, *first.shape[1:])
