"""What the blocks of a reduction found, combined in the order of the blocks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.tensors.expr import Reduce

FEW = 64  # numbers that Python compares faster than NumPy starts


def combined(reduction: Reduce, values: npt.NDArray[Any], indices: npt.NDArray[np.int64] | None) -> Any:
    """The value of a reduction from the partial results of its blocks; ``indices`` are those of an argmax."""
    number_type = reduction.dtype.compute.numpy.type
    if reduction.op in ("sum", "sumsq", "dot"):
        if values.dtype == np.float64:
            return number_type(_exact_sum(values))
        return number_type(values.sum())
    if indices is not None:
        return number_type(indices[int(np.argmax(values))])
    numbers = values.tolist() if values.size <= FEW else []
    if numbers and not math.isnan(sum(numbers)):  # else some are NaN, or infinities of both signs
        return number_type(min(numbers) if reduction.op == "min" else max(numbers))
    return number_type((np.minimum if reduction.op == "min" else np.maximum).reduce(values))


def _exact_sum(values: npt.NDArray[Any]) -> float:
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):  # partial sums beyond float64, or infinities of both signs
        with np.errstate(all="ignore"):
            return float(np.add.accumulate(values)[-1])
