"""Checkpoint averaging: checkpoints of one training run, weighted as if its learning rate had decayed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated

from lbrx.errors import UsageError
from lbrx.jobs.merge.methods.parameters import Limits
from lbrx.jobs.merge.methods.task_vectors import weighted_sum
from lbrx.tensors.tensor import Tensor

DECAYS: dict[str, Callable[[float], float]] = {
    "linear": lambda time: 1.0 - time,
    "cosine": lambda time: (1.0 + math.cos(math.pi * time)) / 2,
    "sqrt": lambda time: 1.0 - math.sqrt(time),
}
"""How a learning rate decays from 1 at time 0 to 0 at time 1."""


def checkpoint_average(models: Annotated[Sequence[Tensor], Limits(2)], *, decay: str = "linear") -> Tensor:
    """The mean of checkpoints in the order of their training, weighted by a decay of the learning rate.

    The weight of a checkpoint is how much the learning rate falls after it (WSM). ``linear`` gives equal weights,
    ``cosine`` more to those in the middle, ``sqrt`` more to the first ones.

    >>> from lbrx import tensor
    >>> checkpoint_average([tensor([1.0]), tensor([3.0])]).numpy()
    array([2.])
    >>> checkpoint_average([tensor([1.0]), tensor([3.0])], decay="sqrt").numpy().round(4)
    array([1.5858])
    """
    if decay not in DECAYS:
        raise UsageError(f"checkpoint_average: decay is {decay!r}; expected one of {', '.join(DECAYS)}")
    rate, count = DECAYS[decay], len(models)
    weights = [rate(number / count) - rate((number + 1) / count) for number in range(count)]
    return weighted_sum(models, weights)
