"""DELLA without consensus: differences from a base kept at random, the larger ones rather."""

from __future__ import annotations

from collections.abc import Sequence

from lbrx.jobs.merge.methods.context import MergeContext
from lbrx.jobs.merge.methods.sparsify import random_by_rank
from lbrx.jobs.merge.methods.task_vectors import add_weighted, differences, masked
from lbrx.tensors.tensor import Tensor


def della_linear(
    base: Tensor,
    models: Sequence[Tensor],
    *,
    context: MergeContext,
    weight: Sequence[float],
    density: Sequence[float],
    epsilon: Sequence[float],
    normalize: bool = False,
    rescale: bool = True,
    lambda_: float = 1.0,
) -> Tensor:
    """As ``della``, but all that is kept is added, whatever its sign.

    >>> from lbrx import tensor
    >>> base, models = tensor([0.0, 0.0]), [tensor([4.0, 1.0]), tensor([-1.0, 2.0])]
    >>> parameters = {"weight": [1.0, 1.0], "density": [1.0, 1.0], "epsilon": [0.1, 0.1]}
    >>> della_linear(base, models, context=MergeContext("w"), **parameters).numpy()
    array([3., 3.])
    """
    shares = zip(differences(base, models), density, epsilon, strict=True)
    deltas = [
        masked(delta, random_by_rank(delta, share, spread, context, model), rescale, random_masks=len(models))
        for model, (delta, share, spread) in enumerate(shares)
    ]
    return add_weighted(base, deltas, weight, normalize=normalize, lambda_=lambda_)
