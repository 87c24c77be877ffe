"""Values that are not finite: found on the way at no cost, counted only where there are any."""

from __future__ import annotations

import math
from collections.abc import Mapping

from lbrx.engine.encode import EncodedStorage
from lbrx.errors import LbrxError
from lbrx.tensors.creation import evaluate
from lbrx.tensors.expr import Blocks
from lbrx.tensors.tensor import Tensor

RESULT = "result"


class NonFiniteError(LbrxError, ValueError):
    """A tensor has values that are NaN or infinite, and that was forbidden."""


def count_nonfinite(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, int]]:
    """How many NaN and how many infinities each tensor has; those that have none are left out.

    >>> from lbrx import tensor
    >>> count_nonfinite({"a": tensor([1.0, float("nan")]), "b": tensor([1.0, 2.0])})
    {'a': (1, 0)}
    """
    found = {}
    for place, tensor in tensors.items():
        if not tensor.dtype.is_float:
            continue
        values = _before_coding(tensor) if tensor.shape else tensor.reshape(1)
        nans, infinities = evaluate(values.isnan().sum(), (abs(values) == math.inf).sum())
        if nans or infinities:
            found[place] = (int(nans), int(infinities))
    return found


def _before_coding(tensor: Tensor) -> Tensor:
    """The values of a tensor, before they are quantized if that is still to be done."""
    storage = tensor.expr.storage if isinstance(tensor.expr, Blocks) else None
    values = storage.values if isinstance(storage, EncodedStorage) else None
    return tensor if values is None else Tensor(values)


def describe(counts: Mapping[str, tuple[int, int]]) -> str:
    """The counts in words.

    >>> describe({"models/a": (1, 0), "result": (1, 2)})
    '1 NaN and 0 infinite values in models/a; 1 NaN and 2 infinite values in the result'
    """
    return "; ".join(
        f"{nans} NaN and {infinities} infinite values in {'the result' if place == RESULT else place}"
        for place, (nans, infinities) in counts.items()
    )
