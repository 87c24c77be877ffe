"""softmax, rms_norm and layer_norm along the last axis.

Sums accumulate in f64; the rest is f32. For any row length, the error of a result is at most 8 units in the last place
(2**-23 each) of its largest term.
"""

from __future__ import annotations

import numpy as np

from lbrx.engine.arrays import Floats, Values, row_vector, with_last_axis
from lbrx.engine.device import device_for


def softmax(x: Values) -> Floats:
    """Return exp(x) / sum of exp(x) along the last axis. Values below e**-87 of the largest become 0.

    >>> softmax(np.array([[0.0, 0.0], [1000.0, 0.0]], np.float32))
    array([[0.5, 0.5],
           [1. , 0. ]], dtype=float32)
    """
    return device_for(x).apply("softmax", with_last_axis(x, "softmax"))


def rms_norm(x: Values, weight: Values, eps: float = 1e-6, add_one: bool = False) -> Floats:
    """Return x / sqrt(mean of x**2 + eps) times a weight, or times 1 + weight with ``add_one``.

    >>> rms_norm(np.array([[3.0, 4.0]], np.float32), np.ones(2, np.float32), eps=0.0).round(4)
    array([[0.8485, 1.1314]], dtype=float32)
    """
    values = with_last_axis(x, "rms_norm")
    factors = row_vector(weight, values.shape[-1], "the weight of rms_norm")
    if add_one:
        factors = factors + np.float32(1.0)
    return device_for(values).apply("rms_norm", values, (factors,), (eps,))


def layer_norm(x: Values, weight: Values, bias: Values | None = None, eps: float = 1e-5) -> Floats:
    """Return (x - mean) / sqrt(variance + eps) times a weight, plus a bias.

    >>> layer_norm(np.array([[1.0, 3.0]], np.float32), np.ones(2, np.float32), eps=0.0)
    array([[-1.,  1.]], dtype=float32)
    """
    values = with_last_axis(x, "layer_norm")
    columns = values.shape[-1]
    factors = row_vector(weight, columns, "the weight of layer_norm")
    terms = np.zeros(columns, np.float32) if bias is None else row_vector(bias, columns, "the bias of layer_norm")
    return device_for(values).apply("layer_norm", values, (factors, terms), (eps,))
