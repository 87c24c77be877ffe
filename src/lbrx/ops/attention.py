"""Attention: check the inputs and call the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.engine.arrays import Floats, Values, floats
from lbrx.engine.attention_options import DTYPE_NAMES, AttentionOptions
from lbrx.engine.device import CPU, Heads, chosen, device
from lbrx.engine.key_values import KeyValues
from lbrx.engine.recording import Recorded
from lbrx.errors import DTypeError, ShapeError
from lbrx.settings import settings
from lbrx.tensors.tensor import Tensor


def attention(
    q: Values,
    k: Values,
    v: Values,
    *,
    scale: float | None = None,
    causal: bool = True,
    window: int | None = None,
    softcap: float | None = None,
    offset: int = 0,
    chunk: int | None = None,
    sinks: Floats | None = None,
) -> Floats:
    """softmax(scale q k^T) v: queries [heads, n, d], keys and values [kv_heads, m, d], in f32, f16 or bf16.

    Query i has position ``offset`` + i among the keys. With ``causal``, it sees no later key. With ``window``, it sees
    only keys fewer than that many positions away, with ``chunk`` only those of its own run of so many positions.
    ``softcap`` bounds the scores. ``sinks`` are one more score for each head, whose weight is lost. A query that sees
    no key gives zeros.

    The error of a score is at most d 2**-23 of the sum of the magnitudes of its products (with a cap, plus 3e-7 of the
    cap). The error of a result is at most 2**-18 of the largest magnitude of the values in addition. On x86, 24 or more
    bf16 queries with bf16 keys and values are multiplied as i16. This changes scores by up to d 2**-12 of the largest
    query and key times the scale, and results by up to 2**-7 of the largest value. The change is usually less than a
    quarter of the error of rounding to bf16. Values must be finite even if no query sees them, because a weight of 0
    times infinity is NaN.

    >>> one = np.ones((1, 3, 4), np.float32)
    >>> attention(one, one, np.arange(12, dtype=np.float32).reshape(1, 3, 4))[0]
    array([[0., 1., 2., 3.],
           [2., 3., 4., 5.],
           [4., 5., 6., 7.]], dtype=float32)
    """
    queries, keys, values = (_array(each) for each in (q, k, v))
    options = AttentionOptions(scale, causal, window, softcap, offset, chunk, sinks)
    options.check(queries.shape, keys.shape, values.shape)
    shape = (*queries.shape[:2], values.shape[2])
    if 0 in shape or not keys.shape[1]:
        return np.zeros(shape, np.float32)
    heads = Heads(max(queries.shape[2], values.shape[2]))
    target = chosen(settings.device, heads) if options.is_plain else device(CPU)
    return target.attention(queries, keys, values, options)


def cached_attention(
    q: Values,
    k: Values,
    v: Values,
    memory: KeyValues,
    *,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    chunk: int | None = None,
    sinks: Floats | None = None,
) -> Floats:
    """Causal attention of new tokens to themselves and to those in a KV cache; stores their keys and values.

    Shapes and options are those of `attention`. Call ``advance`` of the cache when all layers have done this.

    >>> from lbrx.engine.key_values import KeyValueCache
    >>> cache = KeyValueCache([(1, 4, 4)])
    >>> one = np.ones((1, 2, 4), np.float32)
    >>> cached_attention(one, one, one, cache.layers[0]).shape
    (1, 2, 4)
    """
    queries: Any = q
    if isinstance(queries, Recorded):
        options = AttentionOptions(scale, True, window, softcap, 0, chunk, sinks)
        options.check(queries.shape, k.shape, v.shape)
        recorded: Any = queries.recorder.cached_attention(queries, k, v, memory, options)  # type: ignore[arg-type]
        return recorded  # type: ignore[no-any-return]
    offset, sequences = memory.length, memory.sequences
    new_keys, new_values = floats(k), floats(v)
    if sequences > 1:
        q, new_keys, new_values = (_as_heads(each) for each in (floats(q), new_keys, new_values))
        sinks = None if sinks is None else np.tile(sinks, sequences)
    keys, values = memory.extend(new_keys, new_values)
    mixed = attention(
        q, keys, values, scale=scale, window=window, softcap=softcap, offset=offset, chunk=chunk, sinks=sinks
    )
    return mixed if sequences == 1 else mixed.reshape(sequences, -1, mixed.shape[2]).transpose(1, 0, 2)


def _as_heads(values: Floats) -> Floats:
    """Values [heads, sequences, size] of one token of each sequence, as [sequences * heads, 1, size]."""
    return np.ascontiguousarray(values.transpose(1, 0, 2)).reshape(-1, 1, values.shape[2])


def _array(values: Values) -> npt.NDArray[Any]:
    """Return an array with contiguous rows."""
    array = values.numpy() if isinstance(values, Tensor) else np.asarray(values)
    if array.dtype not in DTYPE_NAMES:
        raise DTypeError(f"attention takes f32, f16 and bf16, not {array.dtype}")
    if array.ndim != 3:
        raise ShapeError(f"attention: an input has shape {array.shape}; expected [heads, positions, elements]")
    rows_are_whole = array.strides[2] == array.itemsize and array.strides[1] % array.itemsize == 0
    return array if rows_are_whole else np.ascontiguousarray(array)
