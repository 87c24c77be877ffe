"""Gathered rows and joined tensors, over everything that can lie beneath them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lbrx
from lbrx.settings import using
from lbrx.tensors.expr import Source
from support.strategies import assert_same, numpy_type, values

ARRAY = np.arange(30, dtype=np.float32).reshape(5, 6)


@pytest.mark.parametrize("name", ["f32", "bf16", "u8", "i4"])
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_rows_of_a_stored_tensor(name: str, data: st.DataObject) -> None:
    array = data.draw(values(name, (5, 6)))
    numbers = data.draw(st.lists(st.integers(-5, 4), max_size=9))
    assert_same(lbrx.tensor(array).rows(numbers).numpy(), array[np.array(numbers, np.int64)])


def test_rows_are_gathered_while_they_are_read() -> None:
    x = lbrx.tensor(ARRAY)
    assert isinstance(x.rows([2, 0]).expr, Source)
    assert_same((x.rows([2, 0, 2]) * 2 + 1).numpy(), ARRAY[[2, 0, 2]] * 2 + 1)
    assert_same(x.T.rows([5, 1]).numpy(), ARRAY.T[[5, 1]])
    assert_same(x[:, ::-2].rows([4, 0]).numpy(), ARRAY[[4, 0], ::-2])


def test_rows_of_expressions_and_of_broadcasts() -> None:
    x, row, column = lbrx.tensor(ARRAY), lbrx.tensor(ARRAY[0]), lbrx.tensor(ARRAY[:, :1])
    picked = [3, 3, 1]
    assert_same((x * row - column).rows(picked).numpy(), (ARRAY * ARRAY[0] - ARRAY[:, :1])[picked])
    assert_same(row.broadcast_to((5, 6)).rows(picked).numpy(), np.broadcast_to(ARRAY[0], (5, 6))[picked])
    assert_same((x.rows([1, 2]) + x.rows([0, 4])).numpy(), ARRAY[[1, 2]] + ARRAY[[0, 4]])


def test_one_row_broadcasts_like_any_other() -> None:
    x = lbrx.tensor(ARRAY)
    assert_same((x.rows([2]) + x).numpy(), ARRAY[[2]] + ARRAY)
    assert_same((x.rows([1, 2])[1:] + x).numpy(), ARRAY[[2]] + ARRAY)


def test_views_of_gathered_rows() -> None:
    x = lbrx.tensor(ARRAY)
    picked = [4, 0, 2, 2]
    rows = x.rows(picked)
    want = ARRAY[picked]
    for index in (slice(1, None, 2), (slice(None), 3), (slice(None, None, -1), slice(4, 0, -1)), 2, (1, 2), (None, 0)):
        assert_same(rows[index].numpy(), np.asarray(want[index]))
    assert_same(rows.T.numpy(), want.T)
    assert_same(rows.reshape(2, 12).numpy(), want.reshape(2, 12))
    assert_same(rows.rows([1, -1]).numpy(), want[[1, -1]])
    assert_same(rows.broadcast_to((2, 4, 6)).numpy(), np.broadcast_to(want, (2, 4, 6)))


def test_gathered_rows_are_reduced_and_ranked() -> None:
    x = lbrx.tensor(ARRAY)
    rows = x.rows([4, 0, 2])
    assert_same(rows.sum(axis=-1).numpy(), ARRAY[[4, 0, 2]].sum(axis=-1))
    assert_same(rows[:, 0].rank().numpy(), np.array([2, 0, 1]))
    assert rows.sum().item() == ARRAY[[4, 0, 2]].sum()
    assert_same((rows - rows.max(axis=-1, keepdims=True)).numpy(), ARRAY[[4, 0, 2]] - ARRAY[[4, 0, 2]].max(-1)[:, None])


def test_elements_of_vectors_are_gathered() -> None:
    vector = np.arange(10, dtype=np.float32)
    x = lbrx.tensor(vector)
    assert_same(x.rows([3, 3, -1]).numpy(), vector[[3, 3, -1]])
    assert_same((x.rows([5, 1]) * 2).numpy(), vector[[5, 1]] * 2)
    assert_same(x.rows([]).numpy(), vector[:0])


@pytest.mark.parametrize("picked", [[2, 0, 1], [1], []])
def test_rows_of_what_is_computed_first(picked: list[int]) -> None:
    x = lbrx.tensor(ARRAY)
    numbers = np.array(picked, np.int64)
    assert_same(lbrx.arange(30).reshape(5, 6).rows(picked).numpy(), np.arange(30).reshape(5, 6)[numbers])
    assert_same(x.sum(axis=-1).rows(picked).numpy(), ARRAY.sum(axis=-1)[numbers])
    assert_same(x.rank().rows(picked).numpy(), np.broadcast_to(np.arange(6), (5, 6))[numbers])
    assert_same(lbrx.concatenate([x, x]).rows(picked).numpy(), ARRAY[numbers])
    assert_same(x.T.reshape(5, 6).rows(picked).numpy(), ARRAY.T.reshape(5, 6)[numbers])
    noise = lbrx.uniform((5, 6), seed=1)
    assert_same(noise.rows(picked).numpy(), noise.numpy()[numbers])
    assert_same((noise + x).rows(picked).numpy(), (noise.numpy() + ARRAY)[numbers])


def test_vectors_are_gathered_from_gathered_vectors() -> None:
    vector = np.arange(10, dtype=np.float32)
    assert_same(lbrx.tensor(vector).rows([7, 5, 3]).rows([2, 0]).numpy(), vector[[3, 7]])


def test_many_rows_over_many_chunks() -> None:
    array = np.random.default_rng(1).standard_normal((5_000, 64)).astype(np.float32)
    numbers = np.random.default_rng(2).integers(0, 5_000, 4_000)
    with using(threads=3, chunk_elements=1):
        assert_same((lbrx.tensor(array).rows(numbers) * 2).numpy(), array[numbers] * 2)


@settings(deadline=None, max_examples=40)
@given(data=st.data(), axis=st.integers(-2, 1))
def test_joins_along_any_axis(data: st.DataObject, axis: int) -> None:
    lengths = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
    shapes = [(length, 3) if axis in (0, -2) else (3, length) for length in lengths]
    arrays = [data.draw(values("f32", shape)) for shape in shapes]
    got = lbrx.concatenate([lbrx.tensor(array) for array in arrays], axis=axis)
    assert_same(got.numpy(), np.concatenate(arrays, axis=axis))


def parts() -> tuple[list[Any], list[Any]]:
    arrays = [ARRAY, ARRAY[:2] * 2, ARRAY[::-1]]
    x = lbrx.tensor(ARRAY)
    return [x, x[:2] * 2, x[::-1]], arrays


@pytest.mark.parametrize("axis", [0, 1])
def test_joins_take_part_in_expressions(axis: int) -> None:
    tensors, arrays = parts()
    if axis:
        tensors, arrays = [part.T for part in tensors], [part.T for part in arrays]
    whole = np.concatenate(arrays, axis=axis)
    x = lbrx.concatenate(tensors, axis=axis)
    assert_same((x * 2 + 1).numpy(), whole * 2 + 1)
    assert_same((x - x[:, :1]).numpy(), whole - whole[:, :1])
    assert_same(x[2:9:3, ::-1].numpy(), whole[2:9:3, ::-1])
    assert_same(x.to("bf16").numpy(), whole.astype(numpy_type("bf16")))
    assert x.sum().item() == whole.sum()
    assert_same(x.max(axis=-1).numpy(), whole.max(axis=-1))
    assert_same(x.rank().numpy(), np.argsort(np.argsort(whole, axis=-1, kind="stable"), axis=-1, kind="stable"))
    assert_same(x.kth_largest(7).numpy(), np.sort(whole.reshape(-1))[-7])
    assert_same(lbrx.concatenate([x, x], axis=0).numpy(), np.concatenate([whole, whole]))


def test_a_join_of_three_axes_along_the_middle_one() -> None:
    array = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    x = lbrx.tensor(array)
    assert_same(
        lbrx.concatenate([x, x[:, :1], -x], axis=1).numpy(), np.concatenate([array, array[:, :1], -array], axis=1)
    )


def test_a_join_of_one_tensor_is_that_tensor() -> None:
    x = lbrx.tensor(ARRAY)
    assert lbrx.concatenate([x]).expr is x.expr
    assert lbrx.concatenate([x[:0], x, x[:0]]).expr is x.expr
    assert lbrx.concatenate([x[:0], x[:0]]).shape == (0, 6)


def test_packed_tensors_are_joined_within_bytes() -> None:
    array = np.array([1, -2, 3], np.int8)
    x = lbrx.tensor(array, "i4")
    joined = lbrx.concatenate([x, x, x])
    assert joined.dtype is x.dtype
    assert_same(joined.realize().numpy(), np.tile(array, 3).astype(numpy_type("i4")))


@pytest.mark.parametrize(
    ("first", "second"), [((7, 5), (1, 5)), ((7, 5), (7, 1)), ((7, 5), (5,)), ((7, 1), (1, 1)), ((1, 5), (1, 1))]
)
def test_rows_of_products_of_broadcast_arguments(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.random(first, np.float32), rng.random(second, np.float32)
    picked = [row % first[0] for row in (6, 0, 3, 3)]
    gathered = (lbrx.tensor(a) * lbrx.tensor(b) + 1.0).rows(picked)
    np.testing.assert_allclose(gathered.numpy(), (a * b + 1.0)[picked], rtol=1e-6)
