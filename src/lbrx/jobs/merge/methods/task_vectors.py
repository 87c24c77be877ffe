"""Sums of tensors, and differences from a base ("task vectors")."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from operator import add

from lbrx.jobs.merge.methods.parameters import TensorParameters, Violation
from lbrx.tensors.tensor import Tensor

_RELATIVE_ZERO = 1e-9


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


def check_weight_sum(parameters: TensorParameters, switch: str) -> Violation | None:
    """A sum of zero cannot divide the weights, which the parameter ``switch`` turns on."""
    weights = [float(weight) for weight in parameters.across_models("weight") if weight is not None]
    if parameters.shared[switch] and abs(math.fsum(weights)) <= _RELATIVE_ZERO * math.fsum(map(abs, weights)):
        listed = ", ".join(f"{weight:g}" for weight in weights)
        return Violation(
            f"the weights {listed} sum to zero and cannot be normalized; expected another sum, or {switch}: false"
        )
    return None


def differences(base: Tensor, models: Sequence[Tensor]) -> list[Tensor]:
    """What every model adds to the base."""
    return [model - base for model in models]


def sign_agreement(deltas: Sequence[Tensor]) -> list[Tensor]:
    """Where each delta has the sign of the sum of all of them.

    A sum of 0 counts as positive; an element of 0 has no sign and never agrees.

    >>> from lbrx import tensor
    >>> [agrees.numpy().tolist() for agrees in sign_agreement([tensor([3.0, 0.0]), tensor([-1.0, 5.0])])]
    [[True, False], [False, True]]
    """
    sign = (total(deltas) >= 0).to(deltas[0].dtype) * 2 - 1
    return [delta * sign > 0 for delta in deltas]
