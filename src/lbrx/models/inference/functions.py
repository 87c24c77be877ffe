"""Functions of arrays that have no kernel. They run in a step as calls of Python."""

from __future__ import annotations

import numpy as np

from lbrx.models.inference.weights import Floats


def sigmoid(values: Floats) -> Floats:
    """Return 1 / (1 + exp(-x)).

    >>> sigmoid(np.array([-1000.0, 0.0], np.float32)).tolist()
    [0.0, 0.5]
    """
    with np.errstate(over="ignore"):
        return np.float32(1) / (np.float32(1) + np.exp(-values))


def softplus(values: Floats) -> Floats:
    """Return log(1 + exp(x)).

    >>> softplus(np.array([-1000.0, 1000.0], np.float32)).tolist()
    [0.0, 1000.0]
    """
    return np.logaddexp(values, np.float32(0))
