"""NumPy functions on tensors: they return lazy tensors or raise TypeError, and never compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lbrx.tensors.creation import concatenate, ones_like, stack, where, zeros_like
from lbrx.tensors.expr import apply
from lbrx.tensors.operators import array_expr, operand
from lbrx.tensors.tensor import Tensor

_OPERATIONS = {
    "add": "add",
    "subtract": "sub",
    "multiply": "mul",
    "divide": "div",
    "floor_divide": "floordiv",
    "remainder": "mod",
    "minimum": "minimum",
    "maximum": "maximum",
    "equal": "eq",
    "not_equal": "ne",
    "less": "lt",
    "less_equal": "le",
    "greater": "gt",
    "greater_equal": "ge",
    "bitwise_and": "and",
    "bitwise_or": "or",
    "bitwise_xor": "xor",
    "invert": "not",
    "negative": "neg",
    "absolute": "abs",
    "fabs": "abs",
    "sign": "sign",
    "sqrt": "sqrt",
    "exp": "exp",
    "log": "log",
    "sin": "sin",
    "cos": "cos",
    "arccos": "acos",
    "tanh": "tanh",
    "floor": "floor",
    "rint": "round",
    "isnan": "isnan",
}
_METHODS: dict[str, Callable[[Tensor], Tensor]] = {
    "isinf": Tensor.isinf,
    "isfinite": Tensor.isfinite,
    "square": lambda x: x * x,
}


def call_ufunc(ufunc: Any, method: str, inputs: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    """Return the result of a ufunc, or NotImplemented, which NumPy turns into a TypeError.

    >>> import lbrx
    >>> np.add(lbrx.tensor([1.0]), np.array([2.0]))
    Tensor(f64, shape=(1,), device=cpu, not computed yet)
    """
    if method != "__call__" or options:
        return NotImplemented
    name = ufunc.__name__
    if name == "power":
        return _tensor(inputs[0]) ** inputs[1]
    if name == "matmul":
        return _tensor(inputs[0]) @ _tensor(inputs[1])
    if name in _METHODS:
        return _METHODS[name](*inputs)
    if name not in _OPERATIONS:
        return NotImplemented
    return Tensor(apply(_OPERATIONS[name], *map(operand, inputs)))


def _tensor(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else Tensor(array_expr(np.asarray(value)))


def _join(parts: Sequence[Any], axis: int = 0) -> Tensor:
    return concatenate([_tensor(part) for part in parts], axis)


def _stack(parts: Sequence[Any], axis: int = 0) -> Tensor:
    return stack([_tensor(part) for part in parts], axis)


def _transpose(x: Tensor, axes: Sequence[int] | None = None) -> Tensor:
    return x.transpose(*(axes or ()))


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.sum: Tensor.sum,
    np.mean: Tensor.mean,
    np.var: Tensor.var,
    np.std: Tensor.std,
    np.prod: Tensor.prod,
    np.min: Tensor.min,
    np.amin: Tensor.min,
    np.max: Tensor.max,
    np.amax: Tensor.max,
    np.argmin: Tensor.argmin,
    np.argmax: Tensor.argmax,
    np.any: Tensor.any,
    np.all: Tensor.all,
    np.clip: Tensor.clip,
    np.round: Tensor.round,
    np.around: Tensor.round,
    np.where: where,
    np.concatenate: _join,
    np.stack: _stack,
    np.split: Tensor.split,
    np.reshape: Tensor.reshape,
    np.ravel: Tensor.flatten,
    np.transpose: _transpose,
    np.squeeze: Tensor.squeeze,
    np.expand_dims: Tensor.expand_dims,
    np.broadcast_to: Tensor.broadcast_to,
    np.zeros_like: zeros_like,
    np.ones_like: ones_like,
    np.shape: lambda x: x.shape,
    np.ndim: lambda x: x.ndim,
    np.size: lambda x: x.size,
}
"""NumPy functions that accept tensors, and their implementations."""


def call_function(function: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    """Return the result of a NumPy function, or NotImplemented.

    >>> import lbrx
    >>> np.sum(lbrx.tensor([[1.0, 2.0]]), axis=0).tolist()
    [1.0, 2.0]
    """
    own = FUNCTIONS.get(function)
    return NotImplemented if own is None else own(*args, **options)
