"""Arcee Fusion: the differences from a base that matter most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from lbrx.jobs.merge.methods.parameters import Limits
from lbrx.tensors.tensor import Tensor

_LEAST_PROBABILITY = 1e-8


def arcee_fusion(base: Tensor, models: Annotated[Sequence[Tensor], Limits(1, 1)]) -> Tensor:
    """The base, with the model's elements where their importance is above the median by 1.5 interquartile ranges.

    An element's importance is its distance times its row's divergence: that between the softmax of the two.

    >>> from lbrx import tensor
    >>> base = tensor([[0.0, 0.0, 0.0, 0.0, 0.0]], "f32")
    >>> arcee_fusion(base, [tensor([[0.1, 0.2, 0.1, 0.2, 9.0]], "f32")]).numpy()
    array([[0., 0., 0., 0., 9.]], dtype=float32)
    """
    (model,) = models
    delta = model - base
    importance = abs(delta) * _row_divergence(model, base)
    spread = _quantile(importance, 3, 4) - _quantile(importance, 1, 4)
    threshold = _quantile(importance, 1, 2) + 1.5 * spread
    return base + delta * (importance >= threshold)


def _row_divergence(model: Tensor, base: Tensor) -> Tensor:
    """The Kullback-Leibler divergence of every row, stored: one number a row that the passes after it only read."""
    columns = model.shape[-1]
    p, q = (_softmax(tensor.reshape(-1, columns)) + _LEAST_PROBABILITY for tensor in (model, base))
    return (p * (p / q).log()).sum(axis=-1).reshape(*model.shape[:-1], 1)


def _softmax(rows: Tensor) -> Tensor:
    powers = (rows - rows.max(axis=-1, keepdims=True)).exp()
    return powers / powers.sum(axis=-1, keepdims=True)


def _quantile(tensor: Tensor, numerator: int, denominator: int) -> Tensor:
    """The element at this share of the sorted ones, rounded down."""
    return tensor.kth_largest(tensor.size - (tensor.size - 1) * numerator // denominator)
