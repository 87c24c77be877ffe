"""The KV cache: growth, types, and attention to what it holds."""

from __future__ import annotations

import weakref

import ml_dtypes
import numpy as np
import pytest

from lbrx.engine import key_values
from lbrx.engine.key_values import KeyValueCache
from lbrx.errors import UsageError
from lbrx.ops import attention, cached_attention
from support.references import normal


@pytest.mark.parametrize(("name", "dtype"), [("f32", np.float32), ("f16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_attention_to_a_cache_is_attention_to_rounded_keys(name: str, dtype: type) -> None:
    q, k, v = normal(4, 40, 16), normal(2, 40, 16, seed=1), normal(2, 40, 24, seed=2)
    cache = KeyValueCache([(2, 16, 24)] * 2, capacity=3, dtype_name=name)
    results = []
    for start, stop in ((0, 2), (2, 3), (3, 20), (20, 21), (21, 40)):
        part = slice(start, stop)
        results.append(cached_attention(q[:, part], k[:, part], v[:, part], cache.layers[1], window=11, softcap=4.0))
        cache.advance(stop - start)
    whole = attention(q, k.astype(dtype), v.astype(dtype), window=11, softcap=4.0)
    np.testing.assert_allclose(np.concatenate(results, axis=1), whole, atol=2e-6)


def test_growth_without_memory_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = KeyValueCache([(1, 4, 4)] * 2, capacity=2)
    before = [(layer.keys, layer.values) for layer in cache.layers]
    calls = iter([False, False, True])

    def fails_for_the_second_layer(stored: np.ndarray, used: int, capacity: int) -> np.ndarray:
        if next(calls):
            raise MemoryError
        return larger(stored, used, capacity)

    larger = key_values._larger
    monkeypatch.setattr(key_values, "_larger", fails_for_the_second_layer)
    with pytest.raises(MemoryError):
        cache.reserve(3)
    assert cache.version == 0
    assert all(
        layer.keys is keys and layer.values is values
        for layer, (keys, values) in zip(cache.layers, before, strict=True)
    )
    monkeypatch.undo()
    cache.reserve(3)  # is not taken for done
    assert [layer.keys.shape[1] for layer in cache.layers] == [4, 4]


def test_tokens_for_which_there_is_room_move_nothing() -> None:
    cache = KeyValueCache([(1, 4, 4)], capacity=4)
    keys, values = cache.layers[0].keys, cache.layers[0].values
    cache.advance(1)
    cache.reserve(3)
    assert cache.version == 0
    assert cache.layers[0].keys is keys
    assert cache.layers[0].values is values


def test_growth_keeps_what_is_stored_and_changes_the_version() -> None:
    cache = KeyValueCache([(1, 4, 4)], capacity=2)
    one = np.ones((1, 2, 4), np.float32)
    cached_attention(one, one, one, cache.layers[0])
    cache.advance(2)
    before = cache.version
    cached_attention(one, one * 2, one * 3, cache.layers[0])
    cache.advance(2)
    assert cache.version == before + 1
    assert cache.layers[0].keys[0, :4, 0].tolist() == [1, 1, 2, 2]
    assert cache.layers[0].values[0, :4, 0].tolist() == [1, 1, 3, 3]


def test_values_beyond_f16_are_infinite_without_a_warning() -> None:
    cache = KeyValueCache([(1, 1, 1)], dtype_name="f16")
    large = np.full((1, 1, 1), 1e6, np.float32)
    cached_attention(large * 0, large * 0, large, cache.layers[0])
    assert cache.layers[0].values[0, 0, 0] == np.inf


def test_unknown_types_are_refused() -> None:
    with pytest.raises(UsageError, match="unknown type 'q8_0' of the KV cache; expected one of f32, f16, bf16"):
        KeyValueCache([], dtype_name="q8_0")


def test_a_cache_is_freed_at_once() -> None:
    """Arrays in reference cycles would fill the memory, because few objects are no reason to collect garbage."""
    cache = KeyValueCache([(2, 8, 8)], 16)
    arrays, layer = weakref.ref(cache.layers[0].keys), weakref.ref(cache)
    del cache
    assert arrays() is None
    assert layer() is None
