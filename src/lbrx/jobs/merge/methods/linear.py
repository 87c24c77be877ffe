"""Weighted mean or sum of models."""

from __future__ import annotations

from collections.abc import Sequence

from lbrx.errors import UsageError
from lbrx.jobs.merge.methods.task_vectors import weighted_sum
from lbrx.tensors.tensor import Tensor


def linear(models: Sequence[Tensor], *, weight: Sequence[float], normalize: bool = True) -> Tensor:
    """The weighted sum of the models, divided by the sum of the weights if ``normalize``.

    >>> from lbrx import tensor
    >>> linear([tensor([1.0, 2.0]), tensor([3.0, 6.0])], weight=[3.0, 1.0]).numpy()
    array([1.5, 3. ])
    """
    merged = weighted_sum(models, weight)
    if not normalize:
        return merged
    weight_sum = sum(weight)
    if weight_sum == 0:
        raise UsageError(f"linear: the weights {list(weight)} sum to zero; expected another sum, or normalize=False")
    return merged / weight_sum
