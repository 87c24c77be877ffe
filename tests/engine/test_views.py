"""Views: any chain of slices, transposes, reshapes and broadcasts gives what NumPy gives, whatever lies beneath."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lbrx
from lbrx.tensors.expr import Counter, Map, Reduce, Source, Stored
from support.strategies import Array, View, apply_views, assert_same, numpy_type, shapes, values, view_chains


def numbered(shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
    return np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)


def ready(shape: tuple[int, ...]) -> tuple[Any, Any]:
    array = numbered(shape)
    return lbrx.tensor(array), array


def elementwise(shape: tuple[int, ...]) -> tuple[Any, Any]:
    x, array = ready(shape)
    return x * 2 + 1, array * 2 + 1


def broadcast_pair(shape: tuple[int, ...]) -> tuple[Any, Any]:
    x, array = ready(shape)
    row = numbered(shape[-1:])
    return x - lbrx.tensor(row), array - row


def half_type(shape: tuple[int, ...]) -> tuple[Any, Any]:
    array = numbered(shape, numpy_type("bf16"))
    return lbrx.tensor(array).to("f32"), array.astype(np.float32)


def packed(shape: tuple[int, ...]) -> tuple[Any, Any]:
    array = (numbered(shape, np.int8) % 16 - 8).astype(np.int8)
    return lbrx.tensor(array, "i4"), array.astype(numpy_type("i4"))


def row_sums(shape: tuple[int, ...]) -> tuple[Any, Any]:
    x, array = ready((*shape, 3))
    return x.sum(axis=-1), array.sum(axis=-1)


def positions(shape: tuple[int, ...]) -> tuple[Any, Any]:
    count = int(np.prod(shape, dtype=int))
    return lbrx.arange(count).reshape(shape), np.arange(count).reshape(shape)


def joined(shape: tuple[int, ...]) -> tuple[Any, Any]:
    x, array = ready(shape)
    return lbrx.concatenate([x, x + 1]), np.concatenate([array, array + 1])


def constant(shape: tuple[int, ...]) -> tuple[Any, Any]:
    return lbrx.full(shape, 7, "f32"), np.full(shape, 7, np.float32)


BASES: list[Callable[[tuple[int, ...]], tuple[Any, Any]]] = [
    ready,
    elementwise,
    broadcast_pair,
    half_type,
    packed,
    row_sums,
    positions,
    joined,
    constant,
]


@pytest.mark.parametrize("base", BASES, ids=lambda base: base.__name__)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_any_chain_of_views(base: Callable[..., Any], data: st.DataObject) -> None:
    x, array = base(data.draw(shapes(min_axes=1)))
    chain: list[View] = data.draw(view_chains(array.shape))
    assert_same(apply_views(x, chain).numpy(), np.asarray(apply_views(array, chain)))


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_arithmetic_between_views_of_one_tensor(data: st.DataObject) -> None:
    array = numbered((4, 4, 4))
    x = lbrx.tensor(array)
    left, right = (data.draw(st.permutations(range(3))) for _ in range(2))
    steps = data.draw(st.sampled_from([1, 2, -1]))
    got = x.transpose(*left)[::steps] - x.transpose(*right)[::steps]
    assert_same(got.numpy(), array.transpose(left)[::steps] - array.transpose(right)[::steps])


@settings(deadline=None, max_examples=40)
@given(data=st.data(), name=st.sampled_from(["f64", "f8_e5m2", "i16", "bool"]))
def test_views_of_stored_tensors_are_arrays_without_a_copy(name: str, data: st.DataObject) -> None:
    array = data.draw(values(name, shapes(min_axes=1, min_size=1)))
    chain = [view for view in data.draw(view_chains(array.shape)) if view[0] != "reshape"]
    try:
        want = np.asarray(apply_views(array, chain))
    except (IndexError, ValueError):
        return  # without the reshapes, the rest of the chain does not fit
    got = apply_views(lbrx.tensor(array), chain).numpy()
    assert_same(got, want)
    if want.size:
        assert not got.flags.writeable
        assert np.shares_memory(got, array)


def leaf_kinds(expr: Any) -> set[type]:
    if isinstance(expr, Map):
        return set().union(*(leaf_kinds(arg) for arg in expr.args if arg.shape))
    return {type(expr)}


def test_views_of_elementwise_expressions_are_pushed_down_to_the_leaves() -> None:
    x, y = lbrx.tensor(numbered((4, 6))), lbrx.tensor(numbered((6,)))
    for view in ((x * y)[1:, ::2], (x * y).T, (x + y)[None], (x * 2).reshape(2, 2, 6), (x - y).broadcast_to((2, 4, 6))):
        assert leaf_kinds(view.expr) == {Source}
    assert leaf_kinds((lbrx.arange(6).reshape(2, 3) * 2).T.expr) == {Counter}


def test_views_that_cannot_be_pushed_down_are_stored_first() -> None:
    x = lbrx.tensor(numbered((4, 6)))
    assert isinstance(x.T.reshape(24).expr, Stored)
    assert isinstance(x.sum(axis=-1).T.expr, Stored)
    assert_same((x.T.reshape(24) * 2).numpy(), numbered((4, 6)).T.reshape(24) * 2)


def test_a_kept_axis_of_a_row_reduction_stays_a_reduction() -> None:
    x = lbrx.tensor(numbered((3, 4)))
    kept = x.max(axis=-1)[..., None]
    assert isinstance(kept.expr, Reduce)
    assert kept.expr.keepdims
    assert_same((x - kept).numpy(), numbered((3, 4)) - numbered((3, 4)).max(axis=-1)[..., None])


def test_single_elements_of_everything_that_is_made_first() -> None:
    x = lbrx.tensor(numbered((3, 4)))
    assert x.sum(axis=-1)[1].item() == 22
    assert lbrx.concatenate([x, x * 2])[4, 1].item() == 10
    assert lbrx.arange(10)[7].item() == 7
    assert x.rank(descending=True)[0, 0].item() == 3
    assert lbrx.full((2, 2), 5, "i8")[1, 1].item() == 5
    assert lbrx.uniform((5,), seed=3)[2].item() == lbrx.uniform((5,), seed=3).numpy()[2]


def test_single_elements_of_elementwise_expressions() -> None:
    array = numbered((3, 4))
    x, row, column = lbrx.tensor(array), lbrx.tensor(array[1]), lbrx.tensor(array[:, 2:3])
    assert (x * 2 + 1)[2, 1].item() == 19
    assert (x - row)[2, 3].item() == 4
    assert (x - column)[1, 3].item() == 1
    assert lbrx.where(x > 6, x, row)[0, 2].item() == 6
    assert lbrx.where(x > 6, x, row)[2, 2].item() == 10
    assert x.to("bf16")[2, 2].item() == 10
    assert (-x).T[3].T[1].item() == -7


def test_an_element_of_a_comparison_is_compared_in_the_type_of_the_whole() -> None:
    x, limit = lbrx.tensor(np.array([0.1, 0.2], np.float32)), lbrx.tensor(np.float64(0.1))
    assert (x == limit).numpy().tolist() == [True, False]
    assert (x == limit)[0].item() is True


def test_raw_bytes_of_a_stored_tensor() -> None:
    array = numbered((2, 3))
    raw = lbrx.tensor(array)[1:].raw()
    assert raw.dtype.name == "u8"
    assert raw.numpy().tobytes() == array[1:].tobytes()


def test_realize_keeps_values_and_name_and_makes_a_storage() -> None:
    x = lbrx.tensor(numbered((2, 3)), name="weights")
    assert x.realize() is x
    made = (x + 1).realize()
    assert made.is_view
    assert_same(made.numpy(), numbered((2, 3)) + 1)
    assert x.to("bf16").realize().name == "weights"
