"""TIES: the largest differences from a base, where their signs agree."""

from __future__ import annotations

from collections.abc import Sequence

from lbrx.jobs.merge.methods.sparsify import largest
from lbrx.jobs.merge.methods.task_vectors import add_agreeing, differences, masked
from lbrx.tensors.tensor import Tensor


def ties(
    base: Tensor,
    models: Sequence[Tensor],
    *,
    weight: Sequence[float],
    density: Sequence[float],
    normalize: bool = True,
    rescale: bool = False,
    lambda_: float = 1.0,
) -> Tensor:
    """The base plus the ``density`` share of largest differences, where they have the sign of their weighted sum.

    >>> from lbrx import tensor
    >>> base, models = tensor([0.0, 0.0]), [tensor([4.0, 1.0]), tensor([-1.0, 2.0])]
    >>> ties(base, models, weight=[1.0, 1.0], density=[0.5, 1.0]).numpy()
    array([4., 2.])
    """
    deltas = [
        masked(delta, largest(delta, share), rescale)
        for delta, share in zip(differences(base, models), density, strict=True)
    ]
    return add_agreeing(base, deltas, weight, normalize=normalize, lambda_=lambda_)
