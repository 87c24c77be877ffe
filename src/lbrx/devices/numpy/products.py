"""Products and attention of arrays in f32."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lbrx.engine.arrays import Floats
from lbrx.engine.attention_options import AttentionOptions


def matmul(a: Floats, b: Floats) -> Floats:
    """The matrix product with NumPy's rules for axes."""
    with np.errstate(all="ignore"):
        return np.asarray(np.matmul(a, b))


class RowProduct(NamedTuple):
    """A product of two matrices in panels of rows."""

    a: Floats
    b: Floats
    panel_rows: int

    def panel(self, row: int) -> tuple[int, int]:
        first = row // self.panel_rows * self.panel_rows
        return first, min(first + self.panel_rows, self.a.shape[0])

    def multiply(self, first: int, stop: int, out: Floats) -> None:
        out[:] = matmul(self.a[first:stop], self.b)


def attention(q: npt.NDArray[Any], k: npt.NDArray[Any], v: npt.NDArray[Any], options: AttentionOptions) -> Floats:
    """softmax(scale q k^T) v for every head; see `lbrx.ops.attention`.

    >>> one = np.ones((1, 2, 4), np.float32)
    >>> attention(one, one, np.arange(8, dtype=np.float32).reshape(1, 2, 4), AttentionOptions())[0].tolist()
    [[0.0, 1.0, 2.0, 3.0], [2.0, 3.0, 4.0, 5.0]]
    """
    group = q.shape[0] // k.shape[0]
    queries = q.astype(np.float32) * np.float32(options.scale_of(q.shape[2]))
    keys, values = (np.repeat(part.astype(np.float32), group, axis=0) for part in (k, v))
    with np.errstate(all="ignore"):
        scores = queries @ keys.transpose(0, 2, 1)
        if options.softcap is not None:
            cap = np.float32(options.softcap)
            scores = cap * np.tanh(scores / cap)
        is_seen = _is_seen(q.shape[1], k.shape[1], options)
        scores = np.where(is_seen, scores, np.float32(-np.inf))
        largest = scores.max(axis=-1, keepdims=True)
        weights = np.where(is_seen, np.exp(scores - largest), np.float32(0))
        totals = weights.sum(axis=-1, keepdims=True)
        found = (weights @ values) / np.where(totals == 0, np.float32(1), totals)
    return np.asarray(found, np.float32)


def _is_seen(queries: int, keys: int, options: AttentionOptions) -> npt.NDArray[np.bool_]:
    """Which keys each query sees."""
    distance = np.arange(queries)[:, np.newaxis] + options.offset - np.arange(keys)
    is_seen = distance >= 0 if options.causal else np.ones_like(distance, np.bool_)
    return is_seen if options.window is None else is_seen & (abs(distance) < options.window)
