"""What methods over differences from a base ("task vectors") share.

Masks are multiplied, not chosen by: a NaN that a mask drops stays a NaN instead of vanishing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add

from lbrx.jobs.merge.methods.sparsify import stored
from lbrx.tensors.creation import where
from lbrx.tensors.tensor import Tensor

_LEAST_WEIGHT_SUM = 1e-8
_LEAST_L1_NORM = 1e-7


def weighted_sum(tensors: Sequence[Tensor], weights: Sequence[float | Tensor]) -> Tensor:
    """The sum of tensors times weights, in their order.

    >>> from lbrx import tensor
    >>> weighted_sum([tensor([1.0]), tensor([2.0])], [3.0, 0.5]).numpy()
    array([4.])
    """
    return total([tensor * weight for tensor, weight in zip(tensors, weights, strict=True)])


def total(tensors: Sequence[Tensor]) -> Tensor:
    """The sum of at least one tensor, in their order."""
    return reduce(add, tensors)


def differences(base: Tensor, models: Sequence[Tensor]) -> list[Tensor]:
    """What every model adds to the base."""
    return [model - base for model in models]


def masked(delta: Tensor, mask: Tensor | None, rescale: bool, *, random_masks: int = 0) -> Tensor:
    """A delta where the mask is true, else 0; everything if there is no mask.

    ``rescale`` gives the result the L1 norm that the delta had, unless one of the two is about zero. That takes a
    second pass: a random mask, which is slow to make, is kept for it. ``random_masks``: how many are kept at once.

    >>> from lbrx import tensor
    >>> delta = tensor([1.0, -2.0, 3.0])
    >>> masked(delta, abs(delta) > 1, rescale=True).numpy()
    array([ 0. , -2.4,  3.6])
    """
    if mask is None:
        return delta
    if not rescale:
        return delta * mask
    before, after = abs(delta).sum(), abs(delta * mask).sum()
    is_empty = (before < _LEAST_L1_NORM) | (after < _LEAST_L1_NORM)
    return delta * (stored(mask, random_masks) if random_masks else mask) * where(is_empty, 1.0, before / after)


def add_weighted(
    base: Tensor, deltas: Sequence[Tensor], weight: Sequence[float], *, normalize: bool, lambda_: float
) -> Tensor:
    """The base plus the weighted sum of the deltas, divided by the sum of the weights if ``normalize``.

    >>> from lbrx import tensor
    >>> base, deltas = tensor([1.0]), [tensor([4.0]), tensor([8.0])]
    >>> add_weighted(base, deltas, [1.0, 3.0], normalize=True, lambda_=0.5).numpy()
    array([4.5])
    """
    merged = weighted_sum(deltas, weight)
    weight_sum = sum(weight)
    if normalize and abs(weight_sum) >= _LEAST_WEIGHT_SUM:
        merged = merged / weight_sum
    return base + merged * lambda_


def add_agreeing(
    base: Tensor, deltas: Sequence[Tensor], weight: Sequence[float], *, normalize: bool, lambda_: float
) -> Tensor:
    """The base plus the sum of the weighted deltas that have the sign of the sum of all of them.

    ``normalize`` divides every element by the sum of the weights that went into it.

    >>> from lbrx import tensor
    >>> base, deltas = tensor([0.0, 0.0]), [tensor([4.0, 1.0]), tensor([-1.0, 2.0])]
    >>> add_agreeing(base, deltas, [2.0, 1.0], normalize=True, lambda_=1.0).numpy()
    array([4.        , 1.33333333])
    """
    weighted = [delta * value for delta, value in zip(deltas, weight, strict=True)]
    agreeing = [agrees.to(weighted[0].dtype) for agrees in sign_agreement(weighted)]
    merged = weighted_sum(weighted, agreeing)
    if normalize:
        divisor = total([agrees * value for agrees, value in zip(agreeing, weight, strict=True)])
        merged = merged / where(divisor == 0, 1.0, divisor)
    return base + merged * lambda_


def sign_agreement(deltas: Sequence[Tensor]) -> list[Tensor]:
    """Where each delta has the sign of the sum of all of them.

    A sum of 0 counts as positive; an element of 0 has no sign and never agrees.

    >>> from lbrx import tensor
    >>> [agrees.numpy().tolist() for agrees in sign_agreement([tensor([3.0, 0.0]), tensor([-1.0, 5.0])])]
    [[True, False], [False, True]]
    """
    sign = (total(deltas) >= 0).to(deltas[0].dtype) * 2 - 1
    return [delta * sign > 0 for delta in deltas]
