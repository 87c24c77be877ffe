"""Attention with sinks and in chunks, against softmaxes in f64."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from lbrx.engine.key_values import KeyValueCache
from lbrx.errors import ShapeError, UsageError
from lbrx.ops import attention, cached_attention

Floats = npt.NDArray[np.float32]


def expected(q: Floats, k: Floats, v: Floats, offset: int, chunk: int | None, sinks: Floats | None) -> Floats:
    """Every query for itself: a softmax over the keys that it sees and its sink."""
    heads, queries, size = q.shape
    out = np.zeros((heads, queries, v.shape[2]))
    for head in range(heads):
        keys, values = (each[head * len(k) // heads].astype(np.float64) for each in (k, v))
        for query in range(queries):
            position = query + offset
            first = 0 if chunk is None else position // chunk * chunk
            scores = keys[first : position + 1] @ q[head, query].astype(np.float64) / np.sqrt(size)
            if sinks is not None:
                scores = np.append(scores, float(sinks[head]))
            weights = np.exp(scores - scores.max())
            weights /= weights.sum()
            out[head, query] = weights[: position + 1 - first] @ values[first : position + 1]
    return out.astype(np.float32)


def inputs(queries: int, keys: int, seed: int = 0) -> tuple[Floats, Floats, Floats, Floats]:
    random = np.random.default_rng(seed)
    q, k, v = (
        random.standard_normal((heads, count, size)).astype(np.float32)
        for heads, count, size in ((4, queries, 24), (2, keys, 24), (2, keys, 20))
    )
    return q, k, v, random.standard_normal(4).astype(np.float32) * 3


# One query, a few, and tiles of many; the last ones see several blocks of keys.
@pytest.mark.parametrize(("queries", "offset"), [(1, 0), (1, 300), (3, 130), (40, 0), (70, 250)])
@pytest.mark.parametrize("chunk", [None, 1, 7, 130])
@pytest.mark.parametrize("has_sinks", [False, True])
def test_the_result_is_the_formula(queries: int, offset: int, chunk: int | None, has_sinks: bool) -> None:
    q, k, v, sinks = inputs(queries, queries + offset)
    given = sinks if has_sinks else None
    found = attention(q, k, v, offset=offset, chunk=chunk, sinks=given)
    np.testing.assert_allclose(found, expected(q, k, v, offset, chunk, given), rtol=1e-4, atol=1e-4)


def test_bf16_keys_with_sinks() -> None:
    import ml_dtypes

    q, k, v, sinks = (each.astype(ml_dtypes.bfloat16) for each in inputs(60, 60))
    floats = [each.astype(np.float32) for each in (q, k, v)]
    found = attention(q, k, v, sinks=sinks.astype(np.float32))
    np.testing.assert_allclose(found, expected(*floats, 0, None, sinks.astype(np.float32)), rtol=0, atol=2e-2)


def test_a_huge_sink_takes_all_weight() -> None:
    q, k, v, _ = inputs(2, 2)
    assert not attention(q, k, v, sinks=np.full(4, 1e30, np.float32)).any()


def test_with_a_cache() -> None:
    q, k, v, sinks = inputs(12, 12)
    cache = KeyValueCache([(2, 24, 20)])
    pieces = []
    for start, stop in ((0, 5), (5, 6), (6, 12)):
        given = (each[:, start:stop] for each in (q, k, v))
        pieces.append(cached_attention(*given, cache.layers[0], chunk=4, sinks=sinks))
        cache.advance(stop - start)
    np.testing.assert_allclose(np.concatenate(pieces, axis=1), expected(q, k, v, 0, 4, sinks), rtol=1e-4, atol=1e-4)


def test_wrong_sinks_and_chunks_are_refused() -> None:
    q, k, v, sinks = inputs(2, 2)
    with pytest.raises(ShapeError, match=r"sinks of shape \(3,\) in float32; expected one in f32 for each of 4 heads"):
        attention(q, k, v, sinks=sinks[:3])
    with pytest.raises(ShapeError, match="in float64"):
        attention(q, k, v, sinks=sinks.astype(np.float64))
    with pytest.raises(UsageError, match="a chunk of 0 positions"):
        attention(q, k, v, chunk=0)
