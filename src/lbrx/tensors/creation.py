"""Create tensors, and evaluate several at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from lbrx.errors import ShapeError, UsageError
from lbrx.tensors import views
from lbrx.tensors.dtype import DTypeLike
from lbrx.tensors.dtype import dtype as dtype_of
from lbrx.tensors.expr import Counter, Scalar, apply, cast
from lbrx.tensors.functions import function
from lbrx.tensors.operators import operand
from lbrx.tensors.random_keys import stream_key
from lbrx.tensors.shape import Layout, checked_shape, normalize_axis
from lbrx.tensors.tensor import Tensor


def evaluate(*tensors: Tensor) -> tuple[Any, ...]:
    """Compute several tensors in shared passes. Return arrays, or NumPy scalars for tensors without axes.

    >>> import numpy as np, lbrx
    >>> a = lbrx.tensor(np.arange(4, dtype=np.float32))
    >>> [float(value) for value in evaluate(a.sum(), a.max(), a.dot(a))]
    [6.0, 3.0, 14.0]
    """
    if any(not isinstance(each, Tensor) for each in tensors):
        given = next(each for each in tensors if not isinstance(each, Tensor))
        raise UsageError(
            f"evaluate takes tensors, found a {type(given).__name__}; a list needs a star: evaluate(*list)"
        )
    evaluate_exprs = function("evaluate")
    if len(tensors) == 1 and tensors[0]._array_view() is None and not tensors[0].dtype.is_packed:
        return tuple(evaluate_exprs([tensors[0].expr]))
    pending = [tensor for tensor in tensors if tensor._array_view() is None and not tensor.dtype.is_packed]
    computed = dict(zip(map(id, pending), evaluate_exprs([tensor.expr for tensor in pending]), strict=True))
    return tuple(computed[id(tensor)] if id(tensor) in computed else tensor.numpy() for tensor in tensors)


def where(condition: Any, chosen: Any, otherwise: Any) -> Tensor:
    """Choose element-wise between two tensors. The arguments broadcast.

    >>> import lbrx
    >>> x = lbrx.tensor([-1.0, 2.0])
    >>> where(x > 0, x, 0).tolist()
    [0.0, 2.0]
    """
    return Tensor(apply("where", operand(condition), operand(chosen), operand(otherwise)))


def concatenate(parts: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Join tensors of one dtype along an axis. A join along axis 0 is streamed; other joins are stored first.

    >>> import lbrx
    >>> concatenate([lbrx.arange(2), lbrx.arange(3)]).tolist()
    [0, 1, 0, 1, 2]
    """
    if not parts:
        raise ShapeError("cannot concatenate: expected at least one tensor")
    return Tensor(views.joined([part.expr for part in parts], normalize_axis(axis, parts[0].ndim)))


def stack(parts: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Join tensors of one dtype and shape along a new axis.

    >>> import lbrx
    >>> stack([lbrx.arange(2), lbrx.arange(2)], axis=1).tolist()
    [[0, 0], [1, 1]]
    """
    for part in parts:
        if part.shape != parts[0].shape:
            raise ShapeError(f"shapes {parts[0].shape} and {part.shape} differ and cannot be stacked")
    return concatenate([part.expand_dims(axis) for part in parts], axis)


def arange(start: float, stop: float | None = None, step: float = 1, dtype: DTypeLike | None = None) -> Tensor:
    """Return numbers from ``start`` (0 if only one argument is given) up to ``stop``. They take no memory.

    >>> import lbrx
    >>> arange(3).tolist(), arange(2, 5).tolist(), arange(1, 0, -0.25, dtype="f32").tolist()
    ([0, 1, 2], [2, 3, 4], [1.0, 0.75, 0.5, 0.25])
    """
    first, last = (0, start) if stop is None else (start, stop)
    if not step:
        raise UsageError("arange: step is 0; expected another number")
    count = max(math.ceil((last - first) / step), 0)
    number: Tensor = Tensor(Counter("index", Layout.contiguous((count,))))
    if not all(isinstance(each, (int, np.integer)) for each in (first, last, step)):
        number = number.to("f64")
    result = (number if step == 1 else number * step) + first if first or step != 1 else number
    return result if dtype is None else result.to(dtype)


def full(shape: Sequence[int] | int, fill_value: float | int | bool, dtype: DTypeLike | None = None) -> Tensor:
    """Return a tensor filled with one number. It takes no memory. By default its dtype is NumPy's for the number.

    >>> import lbrx
    >>> full((2, 2), 7).tolist(), full(3, 0.5, "bf16").dtype
    ([[7, 7], [7, 7]], DType(bf16))
    """
    value = Scalar(fill_value)
    return Tensor(views.broadcast(value if dtype is None else cast(value, dtype_of(dtype)), checked_shape(shape)))


def zeros(shape: Sequence[int] | int, dtype: DTypeLike = "f64") -> Tensor:
    """Return a tensor of zeros. It takes no memory.

    >>> import lbrx
    >>> zeros((2, 2), dtype="i8").tolist()
    [[0, 0], [0, 0]]
    """
    return full(shape, 0, dtype)


def ones(shape: Sequence[int] | int, dtype: DTypeLike = "f64") -> Tensor:
    """Return a tensor of ones. It takes no memory.

    >>> import lbrx
    >>> ones(3).tolist()
    [1.0, 1.0, 1.0]
    """
    return full(shape, 1, dtype)


def zeros_like(other: Tensor, dtype: DTypeLike | None = None) -> Tensor:
    """Return zeros with the shape and dtype of another tensor.

    >>> import lbrx
    >>> zeros_like(lbrx.tensor([1, 2], "f16"))
    Tensor(f16, shape=(2,), device=cpu, not computed yet)
    """
    return full(other.shape, 0, other.dtype if dtype is None else dtype)


def ones_like(other: Tensor, dtype: DTypeLike | None = None) -> Tensor:
    """Return ones with the shape and dtype of another tensor.

    >>> import lbrx
    >>> ones_like(lbrx.tensor([1, 2])).tolist()
    [1, 1]
    """
    return full(other.shape, 1, other.dtype if dtype is None else dtype)


def uniform(shape: Sequence[int], seed: int, stream: str = "") -> Tensor:
    """Return uniform f32 values in [0, 1) that depend only on seed, stream name and element index.

    >>> import lbrx
    >>> x = uniform((1000,), seed=1)
    >>> bool((x >= 0).all() & (x < 1).all()), x[7].item() == uniform((1000,), seed=1)[7].item()
    (True, True)
    """
    return Tensor(views.counter("uniform", Layout.contiguous(checked_shape(shape)), stream_key(seed, stream)))


def normal(shape: Sequence[int], seed: int, stream: str = "") -> Tensor:
    """Return standard normal f32 values that depend only on seed, stream name and element index.

    >>> import lbrx
    >>> bool(abs(normal((10_000,), seed=1).mean()) < 0.05)
    True
    """
    return Tensor(views.counter("normal", Layout.contiguous(checked_shape(shape)), stream_key(seed, stream)))
