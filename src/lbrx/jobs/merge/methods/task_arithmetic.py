"""Weighted sum of what models add to a base."""

from __future__ import annotations

from collections.abc import Sequence

from lbrx.jobs.merge.methods.task_vectors import add_weighted, differences
from lbrx.tensors.tensor import Tensor


def task_arithmetic(
    base: Tensor, models: Sequence[Tensor], *, weight: Sequence[float], normalize: bool = False, lambda_: float = 1.0
) -> Tensor:
    """The base plus ``lambda_`` times the weighted sum of the models' differences from it.

    >>> from lbrx import tensor
    >>> task_arithmetic(tensor([1.0]), [tensor([2.0]), tensor([5.0])], weight=[1.0, 0.5]).numpy()
    array([4.])
    """
    return add_weighted(base, differences(base, models), weight, normalize=normalize, lambda_=lambda_)
