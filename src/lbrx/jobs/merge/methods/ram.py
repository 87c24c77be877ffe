"""RAM: what one model alone changes as it is, what several change as their mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from lbrx.jobs.merge.methods.parameters import Limits
from lbrx.jobs.merge.methods.task_vectors import differences, total, weighted_sum
from lbrx.tensors.tensor import Tensor


def ram(base: Tensor, models: Sequence[Tensor], *, epsilon: Annotated[float, Limits(0)] = 1e-5) -> Tensor:
    """The base plus the mean of those differences from it that are larger than ``epsilon``.

    >>> from lbrx import tensor
    >>> ram(tensor([0.0, 0.0]), [tensor([4.0, 4.0]), tensor([0.0, 2.0])]).numpy()
    array([4., 3.])
    """
    deltas = differences(base, models)
    changes = [abs(delta) > epsilon for delta in deltas]
    count = total([change.to(deltas[0].dtype) for change in changes])
    return base + weighted_sum(deltas, changes) / count.maximum(1.0)
