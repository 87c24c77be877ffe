"""One model as it is, or scaled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from lbrx.jobs.merge.methods.parameters import Limits
from lbrx.tensors.tensor import Tensor


def passthrough(
    models: Annotated[Sequence[Tensor], Limits(1, 1)], *, scale: Sequence[float | None] = (None,)
) -> Tensor:
    """The only model, times ``scale`` if there is one.

    >>> from lbrx import tensor
    >>> passthrough([tensor([1.0, 2.0])], scale=[0.5]).numpy()
    array([0.5, 1. ])
    """
    (model,), (factor,) = models, scale
    return model if factor is None else model * factor
