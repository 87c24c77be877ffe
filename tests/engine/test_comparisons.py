"""Comparisons, logic, isnan, where and clip against NumPy."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lbrx
from support.strategies import assert_same, computed_type, numpy_type, special_values, values, widened

COMPARISONS = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]
LOGIC = [operator.and_, operator.or_, operator.xor]
COUNT = 40


@pytest.mark.parametrize(
    ("left", "right"),
    [("f32", "f32"), ("bf16", "f8_e5m2"), ("f64", "i64"), ("i32", "f32"), ("i8", "u8"), ("bool", "bool"), ("i4", "i4")],
)
@settings(deadline=None, max_examples=20)
@given(data=st.data())
def test_comparisons(left: str, right: str, data: st.DataObject) -> None:
    a, b = data.draw(values(left, COUNT)), data.draw(values(right, COUNT))
    x, y = lbrx.tensor(a), lbrx.tensor(b)
    computed = computed_type(left, right)
    wide_a, wide_b = widened(a).astype(computed), widened(b).astype(computed)
    got = lbrx.evaluate(*(compare(x, y) for compare in COMPARISONS), x.isnan())
    for compare, result in zip(COMPARISONS, got, strict=False):
        assert_same(result, compare(wide_a, wide_b))
    assert_same(got[-1], np.isnan(widened(a)))


@pytest.mark.parametrize("number", [-1, 0, 255, 256, -(2**40)])
def test_integers_are_compared_with_numbers_beyond_their_range(number: int) -> None:
    array = special_values("u8")
    got = lbrx.evaluate(*(compare(lbrx.tensor(array), number) for compare in COMPARISONS))
    for compare, result in zip(COMPARISONS, got, strict=True):
        assert_same(result, compare(array.astype(np.int64), number))


def test_integers_are_compared_with_larger_ones_without_axes() -> None:
    array = np.full(4, 200, np.uint8)
    x = lbrx.tensor(array)
    assert not (x > x.sum()).numpy().any()
    assert (lbrx.tensor(np.int8(44)) == 300).item() is False


@pytest.mark.parametrize(("left", "right"), [("bool", "bool"), ("u8", "u8"), ("i8", "i32"), ("i64", "bool")])
@settings(deadline=None, max_examples=15)
@given(data=st.data())
def test_logic(left: str, right: str, data: st.DataObject) -> None:
    a, b = data.draw(values(left, COUNT)), data.draw(values(right, COUNT))
    x, y = lbrx.tensor(a), lbrx.tensor(b)
    got = lbrx.evaluate(*(combine(x, y) for combine in LOGIC), ~x)
    for combine, result in zip(LOGIC, got, strict=False):
        assert_same(result, combine(a, b))
    assert_same(got[-1], ~a)


@pytest.mark.parametrize(
    ("condition", "chosen", "otherwise"),
    [("bool", "f32", "bf16"), ("f32", "f32", "f64"), ("u8", "i8", "i32"), ("bool", "bool", "bool")],
)
@settings(deadline=None, max_examples=15)
@given(data=st.data())
def test_where(condition: str, chosen: str, otherwise: str, data: st.DataObject) -> None:
    arrays = [data.draw(values(name, COUNT)) for name in (condition, chosen, otherwise)]
    got = lbrx.where(*(lbrx.tensor(array) for array in arrays)).numpy()
    computed = computed_type(chosen, otherwise)
    truth, left, right = (widened(array) for array in arrays)
    assert_same(
        got,
        np.where(truth.astype(bool), left.astype(computed), right.astype(computed)),
        signed_zeros=computed.kind == "f",
    )


def test_where_broadcasts_and_takes_numbers() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    mask = np.array([[True], [False]])
    got = lbrx.where(lbrx.tensor(mask), lbrx.tensor(array), -1)
    assert_same(got.numpy(), np.where(mask, array, np.float32(-1)))
    assert_same(lbrx.where(True, lbrx.tensor(np.float32(2)), 3.0).numpy(), np.float32(2))


@settings(deadline=None, max_examples=30)
@given(array=values("f32", COUNT), low=st.floats(-10, 10, width=32), width=st.floats(0, 10, width=32))
def test_clip_keeps_nan(array: Any, low: float, width: float) -> None:
    high = low + width
    x = lbrx.tensor(array)
    both, above, below = lbrx.evaluate(x.clip(low, high), x.clip(low), x.clip(max=high))
    small, large = np.float32(low), np.float32(high)
    assert_same(both, np.clip(array, small, large))
    assert_same(above, np.maximum(array, small))
    assert_same(below, np.minimum(array, large))


def test_clip_without_bounds_is_the_same_tensor() -> None:
    x = lbrx.tensor(np.ones(2, numpy_type("bf16")))
    assert x.clip() is x


def test_clip_between_tensors() -> None:
    array = np.arange(-6, 6, dtype=np.int8)
    low, high = np.full(12, -2, np.int8), np.full(12, 3, np.int8)
    got = lbrx.tensor(array).clip(lbrx.tensor(low), lbrx.tensor(high))
    assert_same(got.numpy(), np.clip(array, low, high))
