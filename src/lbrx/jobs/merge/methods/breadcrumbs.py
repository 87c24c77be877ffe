"""Breadcrumbs: differences from a base without the smallest and without the largest."""

from __future__ import annotations

from collections.abc import Sequence

from lbrx.jobs.merge.methods.sparsify import below_outliers
from lbrx.jobs.merge.methods.task_vectors import add_weighted, differences, masked
from lbrx.tensors.tensor import Tensor


def breadcrumbs(
    base: Tensor,
    models: Sequence[Tensor],
    *,
    weight: Sequence[float],
    density: Sequence[float],
    gamma: Sequence[float],
    normalize: bool = False,
    rescale: bool = False,
    lambda_: float = 1.0,
) -> Tensor:
    """The base plus the weighted sum of differences of which the ``gamma`` share of largest magnitude is dropped.

    Of the rest the largest are kept, as many as ``density`` says.

    >>> from lbrx import tensor
    >>> base, models = tensor([0.0, 0.0, 0.0]), [tensor([9.0, 3.0, 1.0]), tensor([-1.0, -2.0, -8.0])]
    >>> parameters = {"weight": [1.0, 1.0], "density": [0.4, 0.7], "gamma": [0.4, 0.0]}
    >>> breadcrumbs(base, models, **parameters).numpy()
    array([ 0.,  1., -8.])
    """
    shares = zip(differences(base, models), density, gamma, strict=True)
    deltas = [masked(delta, below_outliers(delta, kept, dropped), rescale) for delta, kept, dropped in shares]
    return add_weighted(base, deltas, weight, normalize=normalize, lambda_=lambda_)
