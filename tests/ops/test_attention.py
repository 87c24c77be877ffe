"""attention: against float64, over heads, lengths, masks, caps and dtypes; with scratch that does not grow."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lbrx
from lbrx.devices.cpu.ops import attention_i16
from lbrx.errors import DTypeError, ShapeError, UsageError
from lbrx.memory import scratch
from lbrx.ops import attention
from support.references import THREADS, Array, normal, wide

DTYPES: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


def expected(
    q: Array,
    k: Array,
    v: Array,
    scale: float | None = None,
    causal: bool = True,
    window: int | None = None,
    softcap: float | None = None,
    offset: int = 0,
) -> tuple[Array, Array]:
    """The result in float64, and how far from it the stated bounds allow one to be."""
    group = q.shape[0] // k.shape[0]
    queries, keys, values = wide(q), np.repeat(wide(k), group, 0), np.repeat(wide(v), group, 0)
    factor = q.shape[2] ** -0.5 if scale is None else scale
    scores = queries @ keys.transpose(0, 2, 1) * factor
    slack = (q.shape[2] + 2) * 2.0**-23 * (abs(queries) @ abs(keys).transpose(0, 2, 1)).max(initial=0) * abs(factor)
    share = 2.0**-18
    if attention_i16.can_use_attention_i16(q, k, v):
        largest = abs(queries).max(initial=0) * abs(keys).max(initial=0)
        slack, share = slack + q.shape[2] * 2.0**-12 * largest * abs(factor), 2.0**-7
    if softcap is not None:
        scores, slack = softcap * np.tanh(scores / softcap), slack + 3e-7 * softcap
    places, numbers = offset + np.arange(q.shape[1])[:, None], np.arange(k.shape[1])
    sees = (numbers <= places) | (not causal)
    if window is not None:
        sees = sees & (abs(places - numbers) < window)
    weights = np.where(sees, np.exp(scores - scores.max(initial=0)), 0.0)
    total = weights.sum(-1, keepdims=True)
    out = weights @ values / np.where(total == 0, 1, total)
    return out, (2 * np.expm1(slack) + share) * abs(values).max(initial=0) + 1e-37


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    queries, keys, size = draw(st.integers(0, 40)), draw(st.integers(0, 40)), draw(st.integers(1, 20))
    dtype, value_dtype = (DTYPES[draw(st.sampled_from(sorted(DTYPES)))] for _ in range(2))
    return {
        "q": normal(kv_heads * group, queries, size).astype(dtype),
        "k": normal(kv_heads, keys, size, seed=1).astype(dtype),
        "v": normal(kv_heads, keys, draw(st.integers(1, 20)), seed=2).astype(value_dtype),
        "scale": draw(st.none() | st.floats(-1.0, 1.0)),
        "causal": draw(st.booleans()),
        "window": draw(st.none() | st.integers(1, 50)),
        "softcap": draw(st.none() | st.floats(0.5, 50.0)),
        "offset": draw(st.integers(0, 30)),
    }


@pytest.fixture(params=[True, False], ids=["as_words", "as_f32"])
def words_or_f32(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """bf16 by both of the ways that processors choose from."""
    monkeypatch.setattr(attention_i16, "MULTIPLIES_PAIRS", request.param)


@settings(max_examples=150, deadline=None)
@given(cases())
def test_small_inputs_of_any_shape(case: dict[str, Any]) -> None:
    want, bound = expected(**case)
    got = attention(**case)
    assert got.dtype == np.float32
    assert got.shape == want.shape
    assert (abs(got - want) <= bound).all()


@pytest.mark.usefixtures("words_or_f32")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("queries", "keys", "options"),
    [
        (700, 700, {}),
        (1, 5000, {"offset": 4999}),
        (300, 1500, {"offset": 1200, "window": 700}),
        (600, 1100, {"causal": False, "softcap": 20.0}),
        (1500, 1500, {"window": 30}),
    ],
)
def test_inputs_of_several_tiles(dtype: str, queries: int, keys: int, options: dict[str, Any]) -> None:
    q = normal(4, queries, 24).astype(DTYPES[dtype])
    k, v = (normal(2, keys, 24, seed=seed).astype(DTYPES[dtype]) for seed in (1, 2))
    want, bound = expected(q, k, v, **options)
    assert (abs(attention(q, k, v, **options) - want) <= bound).all()


@pytest.mark.parametrize(("size", "value_size"), [(64, 64), (80, 48), (128, 20), (200, 130)])
@pytest.mark.parametrize("queries", [24, 67, 1100])
def test_bf16_is_as_exact_as_its_results(size: int, value_size: int, queries: int) -> None:
    """What products of i16 change is less than what rounding the results to bf16 would."""
    q, k = (normal(2, queries, size, seed=seed).astype(ml_dtypes.bfloat16) for seed in (0, 1))
    v = normal(2, queries, value_size, seed=2).astype(ml_dtypes.bfloat16)
    want, _ = expected(q, k, v)
    rounding = wide(want.astype(ml_dtypes.bfloat16)) - want
    assert np.sqrt(np.mean((attention(q, k, v) - want) ** 2)) < np.sqrt(np.mean(rounding**2)) / 2


def test_a_long_tail_of_small_weights_counts_in_bf16() -> None:
    """2000 keys whose weights are 2**-14 of the largest weigh a tenth of it together."""
    q, k, v = (np.zeros((1, 2016, 16), ml_dtypes.bfloat16) for _ in range(3))
    q[0, :, 0], k[0, 0, 0], v[0, 1:, :] = 1, 14 * np.log(2), 1
    want, _ = expected(q, k, v, scale=1.0)
    assert want[0, -1, 0] > 0.1
    np.testing.assert_allclose(attention(q, k, v, scale=1.0), want, atol=5e-3)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("which", range(3))
def test_bf16_that_is_not_finite_is_multiplied_as_f32(
    value: float, which: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = [normal(1, 300, 16, seed=seed).astype(ml_dtypes.bfloat16) for seed in range(3)]
    inputs[which][0, 260, 3] = value
    got = attention(*inputs)
    monkeypatch.setattr(attention_i16, "MULTIPLIES_PAIRS", False)
    np.testing.assert_array_equal(got, attention(*inputs))
    assert which == 1 or not np.isfinite(got[0, 260]).all()


def test_parts_of_a_cache_and_tensors_are_taken_as_they_are() -> None:
    cache = normal(2, 2, 64, 16).astype(np.float16)
    q = normal(4, 5, 16)
    parts = cache[0, :, :20], cache[1, :, :20]
    got = attention(q, *parts, offset=15)
    np.testing.assert_array_equal(got, attention(q, *(part.copy() for part in parts), offset=15))
    np.testing.assert_array_equal(
        got, attention(lbrx.tensor(q), *(lbrx.tensor(part.copy()) for part in parts), offset=15)
    )
    turned = q.transpose(1, 0, 2).copy().transpose(1, 0, 2)
    np.testing.assert_array_equal(got, attention(turned, *parts, offset=15))


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_the_same_bytes_on_any_number_of_threads(dtype: str) -> None:
    q, k, v = (normal(6, 700, 32, seed=seed).astype(DTYPES[dtype]) for seed in range(3))
    found = []
    for threads in THREADS:
        with lbrx.using(threads=threads):
            found.append(attention(q, k[:2], v[:2]).tobytes())
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_large_scores_do_not_overflow(dtype: str) -> None:
    q, k, v = (normal(1, 50, 8, seed=seed) * size for seed, size in enumerate((1e4, 1e4, 1)))
    q, k, v = (values.astype(DTYPES[dtype]) for values in (q, k, v))
    got = attention(q, k, v)
    scores = np.where(np.tri(50, dtype=bool), wide(q)[0] @ wide(k)[0].T, -np.inf)
    tolerance = {"f32": 1e-6, "bf16": 1e-3}[dtype]
    np.testing.assert_allclose(got[0], wide(v)[0][scores.argmax(-1)], rtol=1e-5, atol=tolerance)


def test_nan_in_a_key_reaches_only_the_queries_that_see_it() -> None:
    q, k, v = normal(1, 40, 8), normal(1, 40, 8, seed=1), normal(1, 40, 8, seed=2)
    clean = attention(q, k, v)
    k[0, 20, 0] = np.nan
    got = attention(q, k, v)
    np.testing.assert_array_equal(got[:, :20], clean[:, :20])
    assert np.isnan(got[:, 20:]).all()


def test_scratch_memory_does_not_grow_with_the_length(monkeypatch: pytest.MonkeyPatch) -> None:
    arena = scratch.scratch_arena()
    get, asked = arena.get, []

    def counting(nbytes: int, *rest: Any) -> Any:
        asked.append(nbytes)
        return get(nbytes, *rest)

    monkeypatch.setattr(arena, "get", counting)
    largest = []
    for length in (32_768, 65_536):
        asked.clear()
        x = normal(1, length, 8)
        attention(x, x, x, window=64)
        largest.append(max(asked))
    assert largest[0] == largest[1] <= 2 << 20


def test_bad_input() -> None:
    q, k = normal(4, 3, 8), normal(2, 5, 8)
    with pytest.raises(ShapeError, match=r"queries \(4, 3, 8\), keys \(2, 5, 4\)"):
        attention(q, k[:, :, :4], k)
    with pytest.raises(ShapeError, match=r"values \(2, 4, 8\)"):
        attention(q, k, k[:, :4])
    with pytest.raises(ShapeError, match="3 heads of queries cannot share 2"):
        attention(q[:3], k, k)
    with pytest.raises(ShapeError, match=r"\[heads, positions, elements\]"):
        attention(q[0], k, k)
    with pytest.raises(DTypeError, match="int64"):
        attention(q.astype(np.int64), k, k)
    with pytest.raises(UsageError, match="window of 0"):
        attention(q, k, k, window=0)
    with pytest.raises(UsageError, match="soft cap"):
        attention(q, k, k, softcap=0.0)
    with pytest.raises(UsageError, match="offset"):
        attention(q, k, k, offset=-1)
