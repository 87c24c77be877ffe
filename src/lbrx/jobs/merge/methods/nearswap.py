"""NearSwap: a model's elements where they are near to the base's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from lbrx.jobs.merge.methods.parameters import Limits
from lbrx.tensors.tensor import Tensor

_LEAST_DISTANCE = 1e-6


def nearswap(
    base: Tensor, models: Annotated[Sequence[Tensor], Limits(1, 1)], *, t: Annotated[float, Limits(0)]
) -> Tensor:
    """The model where it is at most ``t`` from the base, and less and less of it the further away it is.

    >>> from lbrx import tensor
    >>> nearswap(tensor([1.0, 1.0]), [tensor([1.5, 5.0])], t=1.0).numpy()
    array([1.5, 2. ])
    """
    (model,) = models
    share = (t / abs(base - model).maximum(_LEAST_DISTANCE)).clip(0.0, 1.0)
    return share * model + (1.0 - share) * base
