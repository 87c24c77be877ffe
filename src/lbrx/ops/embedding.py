"""Embedding lookup by token id."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lbrx.base import system
from lbrx.engine.arrays import Floats
from lbrx.engine.device import device
from lbrx.errors import DTypeError, ShapeError, UsageError
from lbrx.settings import settings
from lbrx.tensors.tensor import Tensor


def embedding(ids: npt.ArrayLike, weight: Tensor) -> Floats:
    """Look up rows of a weight [vocabulary, d] of any dtype or quantization: f32 [..., d] for ids of shape [...].

    >>> import lbrx
    >>> embedding([2, 0], lbrx.tensor(np.eye(3, dtype=np.float16)))
    array([[0., 0., 1.],
           [1., 0., 0.]], dtype=float32)
    """
    numbers = np.asarray(ids)
    if numbers.dtype.kind not in "iu" and numbers.size:
        raise DTypeError(f"token ids must be integers, not {numbers.dtype}")
    if weight.ndim != 2:
        raise ShapeError(f"embedding: the weight has shape {weight.shape}; expected two axes, tokens and elements")
    tokens, columns = weight.shape
    bad = numbers[(numbers < 0) | (numbers >= tokens)]
    if bad.size:
        raise UsageError(f"token id {int(bad[0])} is out of range; the vocabulary has {tokens} tokens")
    with system.guarded_reads():
        rows = device(settings.device).gather(weight.encoded(), numbers.reshape(-1))
    return rows.reshape(*numbers.shape, columns)
