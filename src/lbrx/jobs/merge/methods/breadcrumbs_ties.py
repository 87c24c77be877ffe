"""Breadcrumbs with the consensus of TIES."""

from __future__ import annotations

from collections.abc import Sequence

from lbrx.jobs.merge.methods.sparsify import below_outliers
from lbrx.jobs.merge.methods.task_vectors import add_agreeing, differences, masked
from lbrx.tensors.tensor import Tensor


def breadcrumbs_ties(
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
    """As ``breadcrumbs``, but only elements that have the sign of their weighted sum are added.

    >>> from lbrx import tensor
    >>> base, models = tensor([0.0, 0.0, 0.0]), [tensor([9.0, 3.0, 1.0]), tensor([-1.0, -2.0, -8.0])]
    >>> parameters = {"weight": [1.0, 1.0], "density": [0.4, 0.7], "gamma": [0.4, 0.0]}
    >>> breadcrumbs_ties(base, models, **parameters).numpy()
    array([ 0.,  3., -8.])
    """
    shares = zip(differences(base, models), density, gamma, strict=True)
    deltas = [masked(delta, below_outliers(delta, kept, dropped), rescale) for delta, kept, dropped in shares]
    return add_agreeing(base, deltas, weight, normalize=normalize, lambda_=lambda_)
