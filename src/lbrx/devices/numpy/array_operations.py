"""Norms, activations and rope on arrays, computed in f64 and rounded once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from lbrx.engine.arrays import Floats

Doubles = Any  # an array of f64
_erf = np.vectorize(math.erf, otypes=[np.float64])


def apply(operation: str, values: Floats, others: tuple[Floats, ...], numbers: tuple[float, ...]) -> Floats:
    """An operation of `lbrx.engine.device.ARRAY_OPERATIONS`.

    >>> apply("silu", np.array([0.0, 1.0], np.float32), (), ()).round(4)
    array([0.    , 0.7311], dtype=float32)
    """
    x, more = values.astype(np.float64), [other.astype(np.float64) for other in others]
    with np.errstate(all="ignore"):
        if operation.endswith("_mul"):
            return np.asarray(_FUNCTIONS[operation.removesuffix("_mul")](x) * more[0], np.float32)
        return np.asarray(_FUNCTIONS[operation](x, *more, *numbers), np.float32)


def _softmax(x: Doubles) -> Doubles:
    weights = np.exp(x - x.max(axis=-1, keepdims=True, initial=-np.inf))
    return weights / weights.sum(axis=-1, keepdims=True)


def _rms_norm(x: Doubles, weight: Doubles, eps: float) -> Doubles:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight


def _layer_norm(x: Doubles, weight: Doubles, bias: Doubles, eps: float) -> Doubles:
    return (x - x.mean(axis=-1, keepdims=True)) / np.sqrt(x.var(axis=-1, keepdims=True) + eps) * weight + bias


def _gelu_tanh(x: Doubles) -> Doubles:
    return x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _rope(x: Doubles, cosines: Doubles, sines: Doubles, is_interleaved: float) -> Doubles:
    pairs, out = cosines.shape[1], x.copy()
    first = slice(0, 2 * pairs, 2) if is_interleaved else slice(0, pairs)
    second = slice(1, 2 * pairs, 2) if is_interleaved else slice(pairs, 2 * pairs)
    out[..., first] = x[..., first] * cosines - x[..., second] * sines
    out[..., second] = x[..., second] * cosines + x[..., first] * sines
    return out


_FUNCTIONS: dict[str, Callable[..., Doubles]] = {
    "softmax": _softmax,
    "rms_norm": _rms_norm,
    "layer_norm": _layer_norm,
    "rope": _rope,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x * 0.5 * (1 + _erf(x / math.sqrt(2))),
    "gelu_tanh": _gelu_tanh,
    "relu": lambda x: np.where(x < 0, 0, x),
    "relu_squared": lambda x: np.where(x < 0, 0, x) ** 2,
    "softcap": lambda x, cap: cap * np.tanh(x / cap),
}
