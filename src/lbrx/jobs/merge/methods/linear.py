"""Weighted mean or sum of models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from lbrx.errors import UsageError
from lbrx.jobs.merge.methods.parameters import TensorParameters, Violation
from lbrx.jobs.merge.methods.task_vectors import check_weight_sum, weighted_sum
from lbrx.tensors.tensor import Tensor


def _weights_divide(parameters: TensorParameters) -> Violation | None:
    return check_weight_sum(parameters, "normalize")


def linear(
    models: Sequence[Tensor], *, weight: Sequence[float], normalize: Annotated[bool, _weights_divide] = True
) -> Tensor:
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
