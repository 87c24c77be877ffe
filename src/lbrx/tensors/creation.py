"""Tensors that are made rather than read, and several values at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lbrx.errors import ShapeError
from lbrx.tensors import views
from lbrx.tensors.dtype import DType
from lbrx.tensors.dtype import dtype as dtype_of
from lbrx.tensors.expr import Counter, Scalar, apply, cast
from lbrx.tensors.functions import function
from lbrx.tensors.operators import operand
from lbrx.tensors.random_keys import stream_key
from lbrx.tensors.shape import Layout, checked_shape, normalize_axis
from lbrx.tensors.tensor import Tensor


def evaluate(*tensors: Tensor) -> tuple[Any, ...]:
    """The values of several tensors, sharing passes over the data: arrays, or NumPy scalars without axes.

    >>> import numpy as np, lbrx
    >>> a = lbrx.tensor(np.arange(4, dtype=np.float32))
    >>> [float(value) for value in evaluate(a.sum(), a.max(), a.dot(a))]
    [6.0, 3.0, 14.0]
    """
    evaluate_exprs = function("evaluate")
    if len(tensors) == 1 and tensors[0]._array_view() is None and not tensors[0].dtype.is_packed:
        return tuple(evaluate_exprs([tensors[0].expr]))
    pending = [tensor for tensor in tensors if tensor._array_view() is None and not tensor.dtype.is_packed]
    computed = dict(zip(map(id, pending), evaluate_exprs([tensor.expr for tensor in pending]), strict=True))
    return tuple(computed[id(tensor)] if id(tensor) in computed else tensor.numpy() for tensor in tensors)


def where(condition: Any, chosen: Any, otherwise: Any) -> Tensor:
    """Element-wise choice."""
    return Tensor(apply("where", operand(condition), operand(chosen), operand(otherwise)))


def concat(parts: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Tensors of one dtype joined along an axis. Along axis 0 a join is streamed; along others it is stored first."""
    if not parts:
        raise ShapeError("nothing to join: at least one tensor is needed")
    return Tensor(views.joined([part.expr for part in parts], normalize_axis(axis, parts[0].ndim)))


def arange(count: int) -> Tensor:
    """0, 1, ... as i64, made while it is read."""
    return Tensor(Counter("index", Layout.contiguous(checked_shape((count,)))))


def full(shape: Sequence[int], value: float | int | bool, dtype: DType | str) -> Tensor:
    """A constant of a shape; takes no memory."""
    return Tensor(views.broadcast(cast(Scalar(value), dtype_of(dtype)), checked_shape(shape)))


def uniform(shape: Sequence[int], seed: int, stream: str = "") -> Tensor:
    """Uniform f32 in [0, 1): a function of seed, stream name and element index alone."""
    return Tensor(views.counter("uniform", Layout.contiguous(checked_shape(shape)), stream_key(seed, stream)))


def normal(shape: Sequence[int], seed: int, stream: str = "") -> Tensor:
    """Standard normal f32: a function of seed, stream name and element index alone."""
    return Tensor(views.counter("normal", Layout.contiguous(checked_shape(shape)), stream_key(seed, stream)))
