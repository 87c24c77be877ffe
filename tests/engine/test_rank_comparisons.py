"""Comparisons with ranks, which are decided from bounds of the ranks, against ranks from a sort."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lbrx
from lbrx.settings import using
from support.strategies import assert_same, values

Rows = Callable[[np.random.Generator], Any]


def ranks(array: Any, descending: bool = False) -> Any:
    """Places in a stable sort of the rows, NaN above everything, both zeros alike."""
    places = np.searchsorted(np.unique(array), array)
    order = np.argsort(-places if descending else places, axis=-1, kind="stable")
    return np.argsort(order, axis=-1, kind="stable")


def half_zero(random: np.random.Generator) -> Any:
    return np.where(random.random((5, 3001)) < 0.5, 0, random.standard_normal((5, 3001))).astype(np.float32)


ROWS: dict[str, Rows] = {
    "normal": lambda random: random.standard_normal((7, 1500)).astype(np.float32),
    "magnitudes": lambda random: np.abs(random.standard_normal((7, 2048))).astype(np.float32),
    "one column": lambda random: random.standard_normal((9, 1)).astype(np.float32),
    "two columns": lambda random: random.standard_normal((9, 2)).astype(np.float32),
    "all equal": lambda _: np.full((3, 777), 2.5, np.float32),
    "all NaN": lambda _: np.full((2, 130), np.nan, np.float32),
    "zeros of both signs": lambda random: np.where(random.random((4, 999)) < 0.5, -0.0, 0.0).astype(np.float32),
    "half of them zero": half_zero,
    "few distinct values": lambda random: random.integers(0, 9, (6, 2500)).astype(np.float32),
    "infinities": lambda random: random.choice([np.inf, -np.inf, 1.0, 2.0, 3.5], (5, 640)).astype(np.float32),
    "some NaN": lambda random: np.where(random.random((5, 640)) < 0.2, np.nan, random.random((5, 640))).astype("f4"),
    "one far above the others": lambda random: np.c_[np.full((3, 1), 1e30), random.random((3, 2000))].astype("f4"),
    "neighbouring floats": lambda random: (
        (random.integers(0, 900, (3, 2000)) + 0x3F800000).astype(np.uint32).view(np.float32)
    ),
    "subnormal numbers": lambda random: random.integers(0, 5000, (3, 2000)).astype(np.uint32).view(np.float32),
    "70,000 columns": lambda random: np.abs(random.standard_normal((2, 70_000))).astype(np.float32),
}


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("rows", ROWS)
def test_random_numbers_below_a_function_of_the_rank(rows: str, descending: bool) -> None:
    array = ROWS[rows](np.random.default_rng(3))
    columns = array.shape[1]
    x, drawn = lbrx.tensor(array), lbrx.uniform(array.shape, 4)
    slope, start = np.float32(0.6 / columns), np.float32(0.2)
    limit = ranks(array, descending).astype(np.float32) * slope + start
    mask = drawn < x.rank(descending).to("f32") * float(slope) + float(start)
    assert_same(mask.numpy(), drawn.numpy() < limit)
    with using(threads=3, chunk_elements=1):
        assert_same(mask.numpy(), drawn.numpy() < limit)


@pytest.mark.parametrize("name", ["f32", "bf16", "u8"])
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_any_values(name: str, data: st.DataObject) -> None:
    array = data.draw(values(name, (3, 70)))
    wide = array.astype(np.float32)
    limits = data.draw(values("i32", (3, 70))) % 70
    assert_same((lbrx.tensor(limits) >= lbrx.tensor(array).rank()).numpy(), limits >= ranks(wide))


@pytest.mark.parametrize("factor", [2.0, -2.0, 0.0, float("inf"), float("nan")])
def test_functions_that_rise_and_fall_and_neither(factor: float) -> None:
    random = np.random.default_rng(5)
    array, other = random.random((4, 300)).astype(np.float32), random.normal(0, 300, (4, 300)).astype(np.float32)
    with np.errstate(invalid="ignore"):
        want = ranks(array).astype(np.float32) * np.float32(factor) + np.float32(1) >= other
    assert_same((lbrx.tensor(array).rank().to("f32") * factor + 1 >= lbrx.tensor(other)).numpy(), want)


def test_what_a_rank_is_compared_with_may_need_the_row() -> None:
    array = np.random.default_rng(6).random((5, 900)).astype(np.float32)
    x = lbrx.tensor(array)
    want = ranks(array) < np.argmax(array, axis=-1)[:, None]
    assert_same((x.rank() < x.argmax(axis=-1).reshape(-1, 1)).numpy(), want)
    largest = x.max(axis=-1, keepdims=True)
    assert_same((x.rank().to("f32") < largest * 500).numpy(), ranks(array) < array.max(-1, keepdims=True) * 500)


def test_ranks_that_serve_more_than_a_comparison() -> None:
    array = np.random.default_rng(7).random((3, 400)).astype(np.float32)
    rank = lbrx.tensor(array).rank()
    below, itself = lbrx.evaluate(rank < 20, rank)
    assert_same(itself, ranks(array))
    assert_same(below, ranks(array) < 20)
    assert_same(((rank < 20) | (rank > 380)).numpy(), (ranks(array) < 20) | (ranks(array) > 380))


def test_two_comparisons_in_one_pass() -> None:
    random = np.random.default_rng(8)
    one, two = (np.abs(random.standard_normal((40, 1111))).astype(np.float32) for _ in range(2))
    masks = [lbrx.tensor(array).rank().to("f32") * 0.5 < 300.25 for array in (one, two)]
    total = (masks[0] & masks[1]).sum()
    want = [ranks(array) * 0.5 < 300.25 for array in (one, two)]
    assert total.item() == int((want[0] & want[1]).sum())
    found = lbrx.evaluate(*masks)
    assert_same(found[0], want[0])
    assert_same(found[1], want[1])
