"""Reductions of whole tensors and along the last axis against NumPy in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lbrx
from support.strategies import assert_same, finite_values, numpy_type, values, widened

WIDTHS = [1, 15, 16, 17, 1023, 1025, 3000]  # around the sixteen lanes and the tiles of 1,024


def exact_sum(array: Any) -> float:
    return math.fsum(array.astype(np.float64).reshape(-1).tolist())


@pytest.mark.parametrize("name", ["f64", "f32", "bf16", "f8_e4m3"])
def test_whole_tensors_of_floats_are_summed_in_float64(name: str) -> None:
    random = np.random.default_rng(1)
    for count in (0, *WIDTHS, 200_000):
        array = random.standard_normal(count).astype(numpy_type(name))
        x, wide = lbrx.tensor(array), widened(array).astype(np.float64)
        total, mean, length, product = lbrx.evaluate(x.sum(), x.mean(), x.norm(), x.dot(x))
        magnitude = float(np.abs(wide).sum())
        assert {value.dtype for value in (total, mean, length, product)} == {np.dtype(np.float64)}
        assert total == pytest.approx(exact_sum(wide), abs=1e-13 * magnitude)
        assert length == pytest.approx(math.sqrt(exact_sum(wide * wide)), rel=1e-13)
        assert product == pytest.approx(exact_sum(wide * wide), rel=1e-13)
        if count:
            assert mean == pytest.approx(exact_sum(wide) / count, abs=1e-13 * magnitude)
        else:
            assert math.isnan(mean)


@pytest.mark.parametrize("name", ["i64", "i32", "i8", "u8", "bool", "i4"])
@settings(deadline=None, max_examples=15)
@given(data=st.data())
def test_integers_are_summed_in_int64(name: str, data: st.DataObject) -> None:
    array = data.draw(values(name, 50))
    x, wide = lbrx.tensor(array), widened(array).astype(np.int64)
    total, low, high, place, product = lbrx.evaluate(x.sum(), x.min(), x.max(), x.argmax(), x.dot(x))
    with np.errstate(all="ignore"):
        assert_same(total, np.int64(wide.sum()))
        assert_same(product, np.int64((wide * wide).sum()))
    assert_same(low, widened(array).min())
    assert_same(high, widened(array).max())
    assert_same(place, np.int64(wide.argmax()))
    assert x.mean().item() == pytest.approx(float(total) / 50, rel=1e-15)


@pytest.mark.parametrize("name", ["f64", "f32", "bf16"])
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_extremes_with_nan_and_infinities(name: str, data: st.DataObject) -> None:
    array = data.draw(values(name, (3, 20)))
    x, wide = lbrx.tensor(array), widened(array)
    got = lbrx.evaluate(x.min(), x.max(), x.argmax())
    rows = lbrx.evaluate(x.min(axis=-1), x.max(axis=1), x.argmax(axis=-1))
    theirs_of: list[Callable[..., Any]] = [np.min, np.max, np.argmax]
    for result, by_row, theirs in zip(got, rows, theirs_of, strict=True):
        assert_same(result, theirs(wide))
        assert_same(by_row, theirs(wide, axis=-1))


@settings(deadline=None, max_examples=25)
@given(array=values("f32", 30))
def test_sums_with_nan_and_infinities(array: Any) -> None:
    wide = array.astype(np.float64)
    total, squares = lbrx.evaluate(lbrx.tensor(array).sum(), lbrx.tensor(array).dot(lbrx.tensor(array)))
    with np.errstate(all="ignore"):
        for got, want, scale in ((total, wide.sum(), np.abs(wide).sum()), (squares, (wide * wide).sum(), 0.0)):
            if np.isfinite(want):
                assert got == pytest.approx(want, rel=1e-13, abs=1e-13 * scale)
            else:
                assert_same(got, want)


@pytest.mark.parametrize("name", ["f64", "f32", "f16"])
def test_rows_are_reduced_in_float64_and_rounded_once(name: str) -> None:
    random = np.random.default_rng(2)
    dtype = np.float64 if name == "f64" else np.float32
    for columns in WIDTHS:
        array = random.standard_normal((4, columns)).astype(numpy_type(name))
        x, wide = lbrx.tensor(array), widened(array).astype(np.float64)
        total, length, product = lbrx.evaluate(x.sum(axis=-1), x.norm(axis=-1), x.dot(x, axis=-1))
        tolerance = 1e-14 if name == "f64" else 1.2e-7
        for got, want in ((total, wide.sum(-1)), (length, np.sqrt((wide**2).sum(-1))), (product, (wide**2).sum(-1))):
            assert got.dtype == dtype
            scale = 1e-13 * columns
            np.testing.assert_allclose(got, want, rtol=tolerance, atol=scale)


@settings(deadline=None, max_examples=20)
@given(array=finite_values((3, 2, 7)), keepdims=st.booleans())
def test_kept_axes(array: Any, keepdims: bool) -> None:
    x, wide = lbrx.tensor(array), array.astype(np.float64)
    total = x.sum(axis=-1, keepdims=keepdims)
    high = x.max(axis=-1, keepdims=keepdims)
    mean = x.mean(axis=2, keepdims=keepdims)
    assert total.shape == high.shape == mean.shape == ((3, 2, 1) if keepdims else (3, 2))
    np.testing.assert_allclose(total.numpy(), wide.sum(-1, keepdims=keepdims), rtol=1.2e-7, atol=1e-6)
    np.testing.assert_allclose(mean.numpy(), wide.mean(-1, keepdims=keepdims), rtol=3e-7, atol=1e-6)
    assert_same(high.numpy(), array.max(-1, keepdims=keepdims))


def test_integer_rows() -> None:
    array = np.arange(-12, 12, dtype=np.int8).reshape(4, 6)
    x = lbrx.tensor(array)
    assert_same(x.sum(axis=-1).numpy(), array.sum(axis=-1, dtype=np.int64))
    assert_same(x.mean(axis=-1).numpy(), array.mean(axis=-1))
    assert_same(x.max(axis=-1).numpy(), array.max(axis=-1))


def test_a_row_reduction_inside_an_expression_shares_its_pass() -> None:
    array = np.random.default_rng(3).standard_normal((5, 40)).astype(np.float32)
    x = lbrx.tensor(array)
    shifted = (x - x.max(axis=-1, keepdims=True)).exp()
    got = (shifted / shifted.sum(axis=-1, keepdims=True)).numpy()
    wide = np.exp(array.astype(np.float64) - array.max(-1, keepdims=True))
    np.testing.assert_allclose(got, wide / wide.sum(-1, keepdims=True), rtol=1e-6)


def test_a_vector_reduced_along_its_only_axis_has_no_axes() -> None:
    x = lbrx.tensor(np.array([3.0, 4.0], np.float32))
    for reduced, want in (
        (x.sum(axis=-1), 7.0),
        (x.norm(axis=0), 5.0),
        (x.max(axis=-1), 4.0),
        (x.dot(x, axis=-1), 25.0),
    ):
        assert_same(reduced.numpy(), np.float32(want))
    assert x.argmax(axis=-1).item() == 1
    assert x.sum(axis=-1, keepdims=True).shape == (1,)


def test_lengths_of_rows_beyond_the_range_of_squares() -> None:
    array = np.array([[3e30, 4e30], [3e-30, 4e-30]], np.float32)
    np.testing.assert_allclose(lbrx.tensor(array).norm(axis=-1).numpy(), [5e30, 5e-30], rtol=1e-6)


def test_rows_without_elements_sum_to_zero() -> None:
    x = lbrx.tensor(np.ones((4, 3), np.float32))
    for _ in range(3):
        (x * 3).numpy()  # leaves something behind in memory that might be handed out again
        assert_same(x[:, :0].sum(axis=-1).numpy(), np.zeros(4, np.float32))
    assert_same(x[:, :0].dot(x[:, :0], axis=-1).numpy(), np.zeros(4, np.float32))
    assert_same((x[:, :0].sum(axis=-1, keepdims=True) + 1).numpy(), np.ones((4, 1), np.float32))
    assert_same(x[:0].sum(axis=-1).numpy(), np.zeros(0, np.float32))


def test_reductions_of_views_and_broadcasts() -> None:
    array = np.random.default_rng(4).standard_normal((6, 8)).astype(np.float32)
    x, wide = lbrx.tensor(array), array.astype(np.float64)
    row = lbrx.tensor(array[0])
    assert x.T.sum(axis=-1).numpy() == pytest.approx(wide.T.sum(-1), rel=1e-6)
    assert x[::-2, 1::3].sum().item() == pytest.approx(wide[::-2, 1::3].sum(), rel=1e-12)
    assert x.dot(row).item() == pytest.approx((wide * wide[0]).sum(), rel=1e-12)
    assert x.dot(row, axis=-1).numpy() == pytest.approx((wide * wide[0]).sum(-1), rel=1e-6)
    assert row.broadcast_to((5, 8)).sum().item() == pytest.approx(5 * wide[0].sum(), rel=1e-12)
    assert lbrx.full((1000,), 0.5, "f16").sum().item() == 500
    assert x.T.argmax().item() == wide.T.argmax()


def test_reductions_of_reductions_come_in_stages() -> None:
    array = np.random.default_rng(5).standard_normal((6, 8)).astype(np.float32)
    x = lbrx.tensor(array)
    centred = x - x.mean()
    spread = (centred * centred).mean()
    got = (centred / spread.sqrt()).max()
    wide = array - np.float32(array.astype(np.float64).mean())
    assert got.item() == pytest.approx((wide / np.sqrt((wide.astype(np.float64) ** 2).mean())).max(), rel=1e-6)


def test_values_without_axes_are_reduced_to_themselves() -> None:
    x = lbrx.tensor(np.float32(-3))
    assert [x.sum().item(), x.min().item(), x.norm().item(), x.argmax().item()] == [-3, -3, 3, 0]


@pytest.mark.parametrize("columns", [1, 1000, 8192, 8193, 20_000])
def test_rows_that_need_an_exponential_more_than_once(columns: int) -> None:
    array = np.random.default_rng(9).standard_normal((3, columns)).astype(np.float32)
    x = lbrx.tensor(array)
    powers = (x - x.max(axis=-1, keepdims=True)).exp()
    softmax = powers / powers.sum(axis=-1, keepdims=True)
    wide = np.exp(array.astype(np.float64) - array.max(-1, keepdims=True))
    want = wide / wide.sum(-1, keepdims=True)
    np.testing.assert_allclose(softmax.numpy(), want, rtol=2e-6)
    entropy = (softmax * softmax.log()).sum(axis=-1)
    np.testing.assert_allclose(entropy.numpy(), (want * np.log(want)).sum(-1), rtol=1e-5, atol=1e-6)
    stored = powers.realize()
    assert_same((stored / stored.sum(axis=-1, keepdims=True)).numpy(), softmax.numpy())


@pytest.mark.parametrize("length", [1, 63, 1024, 1025, 3000, 200_000])
@pytest.mark.parametrize("what", ["plain", "equal", "nan", "infinite", "late"])
def test_argmax_finds_the_first_of_the_largest(length: int, what: str) -> None:
    values = np.random.default_rng(length).integers(-5, 5, length).astype(np.float32)
    if what == "equal":
        values[:] = -0.0
    elif what == "nan":
        values[length // 2 :: 3] = np.nan
    elif what == "infinite":
        values[length // 3], values[length // 2] = np.inf, np.inf
    elif what == "late":
        values[-1] = 7
    x = lbrx.tensor(values)
    assert lbrx.evaluate(x.argmax()) == values.argmax()
    assert lbrx.evaluate((x * 2).argmax()) == values.argmax()


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("size", [1.0, 1e-3, 3e4])
def test_sums_of_many_halves(dtype: str, size: float) -> None:
    x = (lbrx.normal((300_000,), 3) * size).clip(-6e4, 6e4).to(dtype).realize()
    wide = x.to("f64").numpy()
    total, squares, product = lbrx.evaluate(x.sum(), x.norm(), x.dot(x))
    assert abs(float(total) - wide.sum()) <= 1e-13 * abs(wide).sum()
    assert float(squares) == pytest.approx(np.sqrt((wide**2).sum()), rel=1e-13)
    assert float(product) == pytest.approx((wide**2).sum(), rel=1e-13)


@pytest.mark.parametrize("size", [1e-38, 1e-25, 1e-16, 1e18, 1e19, 1e30, 1e38])
def test_norms_of_bf16_beyond_the_squares_of_f32(size: float) -> None:
    x = (lbrx.uniform((5000,), 1) * size).to("bf16").realize()
    wide = x.to("f64").numpy()
    assert float(x.norm().numpy()) == pytest.approx(np.sqrt((wide**2).sum()), rel=1e-7)


def test_norms_of_bf16_with_zeros_nan_and_infinities() -> None:
    values = np.zeros(4096, ml_dtypes.bfloat16)
    assert lbrx.tensor(values).norm().item() == 0
    values[1500] = 3
    assert lbrx.tensor(values).norm().item() == 3
    values[2000] = np.inf
    assert lbrx.tensor(values).norm().item() == np.inf
    values[3000] = np.nan
    assert np.isnan(lbrx.tensor(values).norm().item())


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16", "i32", "i8", "u8", "bool"])
@pytest.mark.parametrize("length", [1, 7, 1024, 5000])
def test_one_reduction_of_a_short_tensor(dtype: str, length: int) -> None:
    """A single value takes a way of its own, with a plan that is kept: once to make it, once to use it."""
    array = np.random.default_rng(length).integers(0, 2, length).astype(numpy_type(dtype))
    x, wide = lbrx.tensor(array), array.astype(np.float64)
    for _ in range(2):
        assert float(x.sum().numpy()) == wide.sum()
        assert float(x.max().numpy()) == wide.max()
        assert float(x.min().numpy()) == wide.min()
        assert int(x.argmax().numpy()) == wide.argmax()
        assert float(x.dot(x).numpy()) == (wide**2).sum()
        assert float(x.norm().numpy()) == pytest.approx(np.sqrt((wide**2).sum()), rel=1e-6)


REDUCTIONS = ("sum", "mean", "var", "std", "prod", "min", "max", "any", "all")


@pytest.mark.parametrize("name", ["f64", "f32", "bf16", "i64", "i8", "u8", "bool"])
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_reductions_over_any_axes_are_those_of_numpy(name: str, data: st.DataObject) -> None:
    array = np.random.default_rng(data.draw(st.integers(0, 9))).integers(0, 3, (2, 3, 4, 5)).astype(numpy_type(name))
    axes = data.draw(st.lists(st.integers(-4, 3), max_size=4, unique_by=lambda axis: axis % 4))
    axis = data.draw(st.sampled_from([None, tuple(axes), *axes]))
    keepdims = data.draw(st.booleans())
    op = data.draw(st.sampled_from(REDUCTIONS))
    wide = widened(array).astype(np.float64) if name in ("f32", "bf16") else widened(array)
    got = getattr(lbrx.tensor(array), op)(axis=axis, keepdims=keepdims)
    want = getattr(wide, op)(axis=axis, keepdims=keepdims)
    assert got.shape == np.shape(want)
    np.testing.assert_allclose(widened(got.numpy()).astype(np.float64), want, rtol=3e-7, atol=1e-6)


@pytest.mark.parametrize("op", ["argmax", "argmin"])
@pytest.mark.parametrize("name", ["f32", "i8", "u8", "bool"])
def test_indices_along_any_axis(op: str, name: str) -> None:
    array = np.random.default_rng(4).integers(0, 3, (3, 4, 5)).astype(numpy_type(name))
    for axis in (None, 0, 1, -1):
        for keepdims in (False, True):
            want = getattr(array, op)(axis=axis, keepdims=keepdims)
            assert_same(getattr(lbrx.tensor(array), op)(axis=axis, keepdims=keepdims).numpy(), np.asarray(want))


@pytest.mark.parametrize("name", ["f32", "bf16", "i16"])
def test_long_columns_are_reduced_in_blocks_of_rows(name: str) -> None:
    """More rows than are read out of order, in the middle of the axes too."""
    array = (np.random.default_rng(5).standard_normal((3, 1500, 900)) * 100).astype(numpy_type(name))
    x, wide = lbrx.tensor(array), widened(array).astype(np.float64)
    for axis in (0, 1, (0, 1), (0, 2)):
        np.testing.assert_allclose(x.sum(axis=axis).numpy(), wide.sum(axis=axis), rtol=2e-7, atol=1e-4)
        assert_same(x.max(axis=axis).numpy(), widened(array).max(axis=axis))
    assert_same((x + 0).min(axis=1).numpy(), widened(array).min(axis=1))
    assert_same(x.argmax(axis=1).numpy(), widened(array).argmax(axis=1))
    np.testing.assert_allclose((x * 2).std(axis=1).numpy(), (wide * 2).std(axis=1), rtol=3e-6)
    scaled = x / x.norm(axis=1, keepdims=True)  # used by the expression after it
    np.testing.assert_allclose(scaled.numpy(), wide / np.sqrt((wide**2).sum(axis=1, keepdims=True)), rtol=1e-6)
    assert float(x.sum(axis=1)[2, 7]) == pytest.approx(wide[2, :, 7].sum(), rel=1e-6)


def test_a_first_nan_is_found_in_a_later_block() -> None:
    array = np.zeros((4000, 600), np.float32)
    array[3999, 5], array[3000, 5], array[10, 6], array[3500, 6] = np.nan, np.nan, np.nan, 7.0
    x = lbrx.tensor(array)
    assert_same(x.argmax(axis=0).numpy(), array.argmax(axis=0))
    assert_same(x.max(axis=0).numpy(), array.max(axis=0))


def test_empty_axes() -> None:
    x, array = lbrx.zeros((2, 0, 3)), np.zeros((2, 0, 3))
    for op in ("sum", "prod", "any", "all"):
        for axis in (None, 0, 1, -1, (0, 1)):
            assert_same(np.asarray(getattr(x, op)(axis=axis).numpy()), np.asarray(getattr(array, op)(axis=axis)))
