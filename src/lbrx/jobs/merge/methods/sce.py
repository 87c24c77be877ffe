"""SCE: select the elements in which models differ, calculate their weights, erase what goes against the majority."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from lbrx.jobs.merge.methods.parameters import Limits
from lbrx.jobs.merge.methods.task_vectors import differences, sign_agreement, total, weighted_sum
from lbrx.tensors.creation import where
from lbrx.tensors.tensor import Tensor

_LEAST_WEIGHT_SUM = 1e-6


def sce(
    base: Tensor,
    models: Sequence[Tensor],
    *,
    select_topk: Annotated[float, Limits(0, 1)] = 1.0,
    int8_mask: bool = False,  # noqa: ARG001
) -> Tensor:
    """The base plus a mean of the models' differences from it, weighted by their mean squares.

    Only the ``select_topk`` share of the elements in which the models differ at all is kept, those of the largest
    variance; how many differ is counted when this is called. Elements against the sign of the sum do not count.

    >>> from lbrx import tensor
    >>> sce(tensor([0.0, 0.0]), [tensor([4.0, 1.0]), tensor([-2.0, 1.0])], select_topk=0.5).numpy()
    array([0., 0.])
    >>> sce(tensor([0.0, 0.0]), [tensor([4.0, 1.0]), tensor([-2.0, 1.0])]).numpy()
    array([4., 1.])
    """
    deltas = differences(base, models)
    if select_topk < 1:
        mask = _most_varying(deltas, select_topk)
        deltas = [delta * mask for delta in deltas]
    agreeing = sign_agreement(deltas)
    weights = [
        agrees.to(deltas[0].dtype) * weight for agrees, weight in zip(agreeing, _energy_shares(deltas), strict=True)
    ]
    return base + weighted_sum(deltas, weights) / total(weights).maximum(_LEAST_WEIGHT_SUM)


def _most_varying(deltas: list[Tensor], share: float) -> Tensor:
    mean = total(deltas) / len(deltas)
    variance = total([(delta - mean) * (delta - mean) for delta in deltas]) / len(deltas)
    differing = int((variance != 0).sum()) if share > 0 else 0
    return variance.top_k_mask(int(differing * share))


def _energy_shares(deltas: list[Tensor]) -> list[Tensor]:
    """The mean squares of the deltas as shares of their sum; equal shares if that is about zero."""
    squares = [delta.dot(delta) / delta.size for delta in deltas]
    square_sum = total(squares)
    return [where(square_sum < _LEAST_WEIGHT_SUM, 1 / len(deltas), square / square_sum) for square in squares]
