"""Weighted mean on a sphere, of any number of models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

from lbrx.errors import UsageError
from lbrx.jobs.merge.methods.parameters import Limits, TensorParameters, Violation
from lbrx.jobs.merge.methods.spherical import pairwise_dots
from lbrx.jobs.merge.methods.task_vectors import check_weight_sum, differences, total, weighted_sum
from lbrx.tensors.creation import where
from lbrx.tensors.tensor import Tensor


def _weights_divide(parameters: TensorParameters) -> Violation | None:
    if len(parameters.across_models("weight")) == 1:  # the only model is taken as it is
        return None
    return check_weight_sum(parameters, "normalize_weights")


def multislerp(
    models: Sequence[Tensor],
    base: Tensor | None = None,
    *,
    weight: Sequence[float],
    normalize_weights: Annotated[bool, _weights_divide] = True,
    eps: Annotated[float, Limits(0)] = 1e-8,
) -> Tensor:
    """The weighted mean of the models' directions, as long as the weighted mean of their lengths.

    With a base, of their differences from it. Directions that cancel out give the plain weighted sum.

    >>> from lbrx import tensor
    >>> multislerp([tensor([2.0, 0.0]), tensor([0.0, 4.0])], weight=[1.0, 1.0]).numpy().round(4)
    array([2.1213, 2.1213])
    """
    if len(models) == 1:
        return models[0]
    divisor = sum(weight) if normalize_weights else 1.0
    if divisor == 0:
        raise UsageError(
            f"multislerp: the weights {list(weight)} sum to zero; expected another sum, or normalize_weights=False"
        )
    shares = [value / divisor for value in weight]
    points = models if base is None else differences(base, models)
    merged = weighted_sum(points, _coefficients(pairwise_dots(points), shares, eps))
    return merged if base is None else base + merged


def _coefficients(dots: list[list[Tensor]], shares: list[float], eps: float) -> list[Tensor]:
    """What every point is multiplied with.

    The directions' mean m is the place of the tangent space, in which their weighted sum is m's own part
    orthogonal to m: zero. Of the way along the tangent only ``eps`` is left, and turns m by cos(eps).
    """
    norms = [row[i].sqrt() for i, row in enumerate(dots)]
    unit_shares = [share / (norm + eps) for share, norm in zip(shares, norms, strict=True)]
    mean_square = total([weighted_sum(row, unit_shares) * own for row, own in zip(dots, unit_shares, strict=True)])
    mean_norm = mean_square.maximum(0.0).sqrt()
    scale = weighted_sum(norms, shares) * math.cos(eps) / mean_norm
    cancels = mean_norm < eps
    return [where(cancels, share, own * scale) for share, own in zip(shares, unit_shares, strict=True)]
