"""DARE with the consensus of TIES: a random share of the differences from a base, where their signs agree."""

from __future__ import annotations

from collections.abc import Sequence

from lbrx.jobs.merge.methods.context import MergeContext
from lbrx.jobs.merge.methods.sparsify import random_share
from lbrx.jobs.merge.methods.task_vectors import add_agreeing, differences, masked
from lbrx.tensors.tensor import Tensor


def dare_ties(
    base: Tensor,
    models: Sequence[Tensor],
    *,
    context: MergeContext,
    weight: Sequence[float],
    density: Sequence[float],
    normalize: bool = False,
    rescale: bool = True,
    lambda_: float = 1.0,
) -> Tensor:
    """As ``dare_linear``, but only elements that have the sign of their weighted sum are added.

    >>> from lbrx import tensor
    >>> base, models = tensor([0.0, 0.0]), [tensor([4.0, 1.0]), tensor([-1.0, 2.0])]
    >>> dare_ties(base, models, context=MergeContext("w"), weight=[1.0, 1.0], density=[1.0, 1.0]).numpy()
    array([4., 3.])
    """
    deltas = [
        masked(delta, random_share(delta, share, context, model), rescale, random_masks=len(models))
        for model, (delta, share) in enumerate(zip(differences(base, models), density, strict=True))
    ]
    return add_agreeing(base, deltas, weight, normalize=normalize, lambda_=lambda_)
