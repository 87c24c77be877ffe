"""Model Stock: between a base and the mean of models, as far as the models' directions agree."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Annotated

from lbrx.errors import UsageError
from lbrx.jobs.merge.methods.parameters import Limits
from lbrx.jobs.merge.methods.spherical import pairwise_dots
from lbrx.jobs.merge.methods.task_vectors import differences, total
from lbrx.tensors.creation import where
from lbrx.tensors.tensor import Tensor

_LEAST_NORM_PRODUCT = 1e-6
_LEAST_DIVISOR = 1e-6


def model_stock(base: Tensor, models: Annotated[Sequence[Tensor], Limits(2)], *, filter_wise: bool = False) -> Tensor:
    """The base and the models' mean, blended by the mean cosine between the models' differences from the base.

    ``filter_wise`` looks at every row for itself. Differences that cancel each other out leave the base.

    >>> from lbrx import tensor
    >>> model_stock(tensor([0.0, 0.0]), [tensor([2.0, 0.0]), tensor([0.0, 2.0])]).numpy()
    array([0., 0.])
    >>> model_stock(tensor([0.0, 0.0]), [tensor([2.0, 0.0]), tensor([2.0, 0.0])]).numpy()
    array([2., 0.])
    """
    count = len(models)
    if count < 2:
        raise UsageError(f"model_stock takes at least 2 models besides the base, found {count}")
    cosine = _mean_cosine(differences(base, models), axis=-1 if filter_wise else None)
    divisor = 1.0 + (count - 1) * cosine
    t = where(divisor <= _LEAST_DIVISOR, 0.0, count * cosine / divisor)
    return t * (total(models) / count) + (1.0 - t) * base


def _mean_cosine(deltas: list[Tensor], axis: int | None) -> Tensor:
    dots = pairwise_dots(deltas, axis)
    norms = [row[i].sqrt() for i, row in enumerate(dots)]
    pairs = list(combinations(range(len(deltas)), 2))
    cosines = [(dots[i][j] / (norms[i] * norms[j]).maximum(_LEAST_NORM_PRODUCT)).clip(-1.0, 1.0) for i, j in pairs]
    return total(cosines) / len(pairs)
