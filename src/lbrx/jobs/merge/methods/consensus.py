"""Consensus task arithmetic: the sum of task vectors, where several tasks need it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from lbrx.jobs.merge.methods.parameters import Limits
from lbrx.jobs.merge.methods.task_vectors import differences, total
from lbrx.tensors.tensor import Tensor


def consensus_ta(
    base: Tensor,
    models: Sequence[Tensor],
    *,
    weight: Sequence[float],
    threshold: Annotated[Sequence[float], Limits(0)] = (0.4,),
    least: Annotated[int, Limits(1)] = 2,
    lambda_: float = 1.0,
) -> Tensor:
    """The base and the weighted sum of the differences from it, for the elements that enough models need.

    A model needs an element if its difference is at least ``threshold`` times what the others add up to there (the
    TALL mask). Elements that fewer than ``least`` models need are those of the base.

    >>> from lbrx import tensor
    >>> base, models = tensor([0.0, 0.0]), [tensor([1.0, 1.0]), tensor([1.0, 0.0])]
    >>> consensus_ta(base, models, weight=[1.0, 1.0], threshold=[0.4, 0.4]).numpy()
    array([2., 0.])
    """
    deltas = differences(base, models)
    scaled = [delta * share for delta, share in zip(deltas, weight, strict=True)]
    merged = total(scaled)
    needs = [
        (abs(delta) >= abs(merged - delta) * share) & (delta != 0)
        for delta, share in zip(scaled, threshold, strict=True)
    ]
    counts = total([need.to(merged.dtype) for need in needs])
    return base + merged * (counts >= least) * lambda_
