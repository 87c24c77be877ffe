"""kth_largest, top_k_mask and rank against sorts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lbrx
from lbrx.memory.limits import limited
from lbrx.memory.scratch import scratch_arena
from lbrx.settings import using
from support.strategies import assert_same, numpy_type, values, widened


def descending(array: Any) -> Any:
    """All values from largest to smallest, NaN first."""
    return np.sort(widened(array).reshape(-1))[::-1]


def mask_of_largest(array: Any, k: int) -> Any:
    """True for the k largest; among equals (NaN are equal) the first ones."""
    wide = widened(array).reshape(-1)
    distinct = np.unique(wide)  # sorted, NaN last and once
    places = np.searchsorted(distinct, wide)
    order = np.argsort(-places, kind="stable")
    mask = np.zeros(wide.size, bool)
    mask[order[:k]] = True
    return mask.reshape(array.shape)


@pytest.mark.parametrize("name", ["f64", "f32", "bf16", "i64", "i32", "u8", "bool"])
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_kth_largest_and_the_mask_of_the_largest(name: str, data: st.DataObject) -> None:
    array = data.draw(values(name, (3, 20)))
    k = data.draw(st.integers(1, array.size))
    x = lbrx.tensor(array)
    assert_same(x.kth_largest(k).numpy(), descending(array)[k - 1])
    assert_same(x.top_k_mask(k).numpy(), mask_of_largest(array, k))


MANY = 300_000
CROWDS: dict[str, Callable[[np.random.Generator], Any]] = {
    "normal": lambda random: random.standard_normal(MANY).astype(np.float32),
    "normal f64": lambda random: random.standard_normal(MANY),
    "bf16 with few distinct values": lambda random: random.integers(-9, 9, MANY).astype(np.float32),
    "one value": lambda _: np.full(MANY, 2.5, np.float32),
    "zeros of both signs": lambda random: np.where(random.random(MANY) < 0.5, -0.0, 0.0).astype(np.float32),
    "neighbouring integers": lambda random: random.integers(0, 1000, MANY).astype(np.int32),
    "neighbouring i64": lambda random: random.integers(-40, 40, MANY) + 2**40,
    "neighbouring floats": lambda random: (
        (random.integers(0, 700, MANY) + 0x3F800000).astype(np.uint32).view(np.float32)
    ),
    "mostly NaN": lambda random: np.where(random.random(MANY) < 0.9, np.nan, 1.0).astype(np.float32),
    "u8": lambda random: random.integers(0, 256, MANY).astype(np.uint8),
    "bool": lambda random: random.random(MANY) < 0.5,
}


@pytest.mark.parametrize("crowd", CROWDS)
def test_many_elements_take_several_passes(crowd: str) -> None:
    array = CROWDS[crowd](np.random.default_rng(7))
    x, order = lbrx.tensor(array), descending(array)
    for k in (1, 77, MANY // 3, MANY // 2, MANY - 1000, MANY):
        assert_same(x.kth_largest(k).numpy(), order[k - 1])
    for k in (1000, MANY // 2, MANY - 5):
        np.testing.assert_array_equal(x.top_k_mask(k).numpy(), mask_of_largest(array, k))


def test_kth_largest_of_an_expression_and_of_several_at_once() -> None:
    array = np.random.default_rng(8).standard_normal((50, 70)).astype(np.float32)
    x = lbrx.tensor(array)
    order = np.sort(np.abs(array).reshape(-1))[::-1]
    got = lbrx.evaluate(abs(x).kth_largest(10), abs(x.T).kth_largest(2000), x[::2, ::-3].kth_largest(5))
    assert_same(got[0], order[9])
    assert_same(got[1], order[1999])
    assert_same(got[2], np.sort(array[::2, ::-3].reshape(-1))[-5])


def test_a_mask_takes_part_in_the_expression_it_came_from() -> None:
    array = np.random.default_rng(9).standard_normal(1000).astype(np.float32)
    x = lbrx.tensor(array)
    kept = x * abs(x).top_k_mask(100)
    assert_same(kept.numpy(), array * mask_of_largest(np.abs(array), 100))


MILLIONS = 3 << 19  # elements, enough for a sample
PATTERNS: dict[str, Callable[[np.random.Generator], Any]] = {
    "few distinct values": lambda random: random.integers(-30, 30, MILLIONS).astype(np.float32),
    "few distinct integers": lambda random: random.integers(-30, 30, MILLIONS).astype(np.int32),
    "zeros of both signs and NaN": lambda random: random.choice([0.0, -0.0, np.nan, 1.0], MILLIONS).astype(np.float32),
    "infinities": lambda random: random.choice([np.inf, -np.inf, 1.0], MILLIONS).astype(np.float32),
    "one value": lambda _: np.full(MILLIONS, -2.5, np.float32),
    "sorted": lambda _: np.arange(MILLIONS, dtype=np.float32),
    "a sample that misleads": lambda _: np.where(np.arange(MILLIONS) % 511 < 17, 5.0, 1.0).astype(np.float32),
    "normal": lambda random: random.standard_normal(MILLIONS).astype(np.float32),
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_large_tensors_of_which_a_sample_is_taken(pattern: str) -> None:
    array = PATTERNS[pattern](np.random.default_rng(12))
    x, order = lbrx.tensor(array), descending(array)
    for k in (1, 5000, MILLIONS // 2, MILLIONS - 77):
        value, mask = lbrx.evaluate(x.kth_largest(k), x.top_k_mask(k))
        assert_same(value, order[k - 1])
        np.testing.assert_array_equal(mask, mask_of_largest(array, k))


@pytest.mark.parametrize("shape", [(1100, 1000), (3, 400_000), (1, 1_100_000), (110, 100, 100)])
def test_large_tensors_that_need_something_of_their_rows(shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(14).integers(0, 9, shape).astype(np.float32)
    scaled = array * (array.max(axis=-1, keepdims=True) - 2)
    x = lbrx.tensor(array)
    y = x * (x.max(axis=-1).reshape(*shape[:-1], 1) - 2)
    for k in (300_000, 900_000):
        value, mask = lbrx.evaluate(y.kth_largest(k), y.top_k_mask(k))
        assert_same(value, descending(scaled)[k - 1])
        np.testing.assert_array_equal(mask, mask_of_largest(scaled, k))


def test_with_little_memory_what_is_collected_is_not_kept_for_the_next_search() -> None:
    array = np.random.default_rng(8).standard_normal(3 << 20, np.float32)
    tensor = lbrx.tensor(array)
    with limited(2, "24MB"):
        held = scratch_arena().statistics().held_bytes
        assert float(tensor.kth_largest(1 << 20)) == np.sort(array)[-(1 << 20)]
        assert int(tensor.top_k_mask(1000).to("i32").sum()) == 1000
        assert scratch_arena().statistics().held_bytes - held < 24_000_000
        equals = lbrx.tensor(np.ones(3 << 20))  # all are collected, with their places: four times the memory
        assert int(equals.top_k_mask(1000).to("i32").sum()) == 1000


def test_masks_of_equal_elements_are_cut_at_any_index() -> None:
    count = 5000
    x = lbrx.tensor(np.ones(count, np.float32))
    for k in (1, 63, 1023, 1024, 1025, 4096, count - 1):
        mask = x.top_k_mask(k)
        assert (x * mask).sum().item() == k
        assert_same(mask.numpy(), np.arange(count) < k)
        assert_same((x * mask).reshape(50, 100).sum(axis=-1).numpy().sum(), np.float32(k))
        with using(threads=2, chunk_elements=1):
            assert_same((~mask).numpy(), np.arange(count) >= k)


def test_masks_of_strided_and_broadcast_elements() -> None:
    array = np.random.default_rng(13).integers(0, 4, (60, 70)).astype(np.float32)
    x = lbrx.tensor(array)
    assert_same(x.T.top_k_mask(1500).numpy(), mask_of_largest(array.T, 1500))
    assert_same((x + x[:1]).top_k_mask(99).numpy(), mask_of_largest(array + array[:1], 99))


def test_masks_of_nothing_of_everything_and_of_a_value_without_axes() -> None:
    x = lbrx.tensor(np.array([1.0, np.nan, 3.0], np.float32))
    assert_same(x.top_k_mask(0).numpy(), np.zeros(3, bool))
    assert_same(x.top_k_mask(3).numpy(), np.ones(3, bool))
    single = lbrx.tensor(np.float32(3))
    assert single.top_k_mask(1).item() is True
    assert single.kth_largest(1).item() == 3


def stable_ranks(array: Any, descending_order: bool) -> Any:
    wide = widened(array)
    distinct = np.unique(wide)
    places = np.searchsorted(distinct, wide)
    order = np.argsort(-places if descending_order else places, axis=-1, kind="stable")
    return np.argsort(order, axis=-1, kind="stable")


@pytest.mark.parametrize("name", ["f64", "f32", "bf16", "i64", "u8"])
@settings(deadline=None, max_examples=20)
@given(data=st.data())
def test_ranks_are_those_of_a_stable_sort(name: str, data: st.DataObject) -> None:
    array = data.draw(values(name, (4, 15)))
    x = lbrx.tensor(array)
    up, down = lbrx.evaluate(x.rank(), x.rank(descending=True))
    assert_same(up, stable_ranks(array, descending_order=False))
    assert_same(down, stable_ranks(array, descending_order=True))


def test_ranks_of_long_rows_of_views_and_inside_expressions() -> None:
    array = np.random.default_rng(10).standard_normal((3, 40_000)).astype(np.float32)
    x = lbrx.tensor(array)
    want = stable_ranks(array, descending_order=False)
    with using(threads=2, chunk_elements=1):
        assert_same(x.rank().numpy(), want)
    assert_same(x[:, :50].T.rank().numpy(), stable_ranks(array[:, :50].T, descending_order=False))
    assert_same((abs(x[:, :60]).rank(descending=True) < 7).numpy(), stable_ranks(np.abs(array[:, :60]), True) < 7)


def test_ranks_of_empty_rows() -> None:
    assert lbrx.tensor(np.zeros((0, 4), np.float32)).rank().shape == (0, 4)
    assert_same(lbrx.tensor(np.zeros((2, 1), numpy_type("bf16"))).rank().numpy(), np.zeros((2, 1), np.int64))
