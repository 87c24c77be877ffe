"""RAM+, tensor-local: RAM that strengthens what a model alone changes, the more so the more it shares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from lbrx.jobs.merge.methods.parameters import Limits
from lbrx.jobs.merge.methods.task_vectors import differences, total, weighted_sum
from lbrx.tensors.creation import where
from lbrx.tensors.tensor import Tensor


def ramplus_tl(
    base: Tensor,
    models: Sequence[Tensor],
    *,
    epsilon: Annotated[float, Limits(0)] = 1e-5,
    r: float = 0.1,
    alpha: Annotated[float, Limits(0)] = 0.2,
) -> Tensor:
    """As ``ram``, but what only one model changes is multiplied by ``1 + r * min(shared / unique, alpha)``.

    ``shared`` and ``unique`` count the elements of the tensor that the model changes with others and alone.

    >>> from lbrx import tensor
    >>> ramplus_tl(tensor([0.0, 0.0]), [tensor([4.0, 4.0]), tensor([0.0, 2.0])], r=0.5, alpha=1.0).numpy()
    array([6., 3.])
    """
    deltas = differences(base, models)
    changes = [abs(delta) > epsilon for delta in deltas]
    count = total([change.to(deltas[0].dtype) for change in changes])
    is_shared = count > 1
    gains = [_gain(change & is_shared, change & ~is_shared, r, alpha) for change in changes]
    factors = [
        change.to(deltas[0].dtype) * where(is_shared, 1 / count, gain)
        for change, gain in zip(changes, gains, strict=True)
    ]
    return base + weighted_sum(deltas, factors)


def _gain(shared: Tensor, unique: Tensor, r: float, alpha: float) -> Tensor:
    ratio = shared.sum() / unique.sum().maximum(1)
    return 1.0 + r * ratio.clip(0.0, alpha)
