"""Shapes and layouts, without computing anything."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lbrx.errors import ShapeError
from lbrx.tensors.shape import (
    Layout,
    broadcast_shapes,
    checked_shape,
    coalesce,
    contiguous_strides,
    expand_ellipsis,
    normalize_axis,
)
from support.strategies import Array, apply_view, shapes, view_chains


def elements_of(layout: Layout) -> Array:
    """For each place of a layout the number of the storage's element that lies there."""
    grid = np.indices(layout.shape)
    total: Any = np.full(layout.shape, layout.offset, np.int64)
    for axis, stride in enumerate(layout.strides):
        total = total + grid[axis] * stride
    return np.asarray(total)


def layout_view(layout: Layout, view: tuple[str, Any]) -> Layout | None:
    operation, argument = view
    if operation == "slice":
        return layout.slice(argument)
    if operation == "transpose":
        return layout.transpose(argument)
    if operation == "broadcast":
        return layout.broadcast_to(argument)
    known = int(np.prod([size for size in argument if size != -1], dtype=int))
    sizes = tuple(layout.elements // max(known, 1) if size == -1 else size for size in argument)
    return layout.reshape(sizes)


@given(data=st.data(), shape=shapes())
def test_layouts_move_like_numpys(data: st.DataObject, shape: tuple[int, ...]) -> None:
    layout = Layout.contiguous(shape, offset=3)
    array = np.asarray(np.arange(3, 3 + layout.elements).reshape(shape))
    for view in data.draw(view_chains(shape, max_length=5)):
        moved = layout_view(layout, view)
        if moved is None:  # a reshape that needs a copy: NumPy makes one too
            assert view[0] == "reshape"
            assert not np.shares_memory(array, array.reshape(view[1]))
            return
        layout, array = moved, np.asarray(apply_view(array, view))
        np.testing.assert_array_equal(elements_of(layout), array)


@given(data=st.data(), shape=shapes(min_axes=1))
def test_span_holds_every_element_and_no_more(data: st.DataObject, shape: tuple[int, ...]) -> None:
    layout = Layout.contiguous(shape)
    for view in data.draw(view_chains(shape)):
        moved = layout_view(layout, view)
        assume(moved is not None)
        assert moved is not None
        layout = moved
    low, high = layout.span()
    touched = elements_of(layout)
    if touched.size:
        assert (low, high) == (touched.min(), touched.max() + 1)
    else:
        assert low == high


@given(data=st.data(), shape=shapes())
def test_contiguous_means_that_elements_follow_each_other(data: st.DataObject, shape: tuple[int, ...]) -> None:
    layout = Layout.contiguous(shape)
    for view in data.draw(view_chains(shape)):
        moved = layout_view(layout, view)
        if moved is None:
            break
        layout = moved
    places = elements_of(layout).reshape(-1)
    in_order = places.size == 0 or np.array_equal(places, np.arange(places[0], places[0] + places.size))
    assert layout.is_contiguous == in_order


@given(data=st.data(), shape=shapes(min_size=1))
def test_coalescing_keeps_the_walk(data: st.DataObject, shape: tuple[int, ...]) -> None:
    walks = [tuple(data.draw(st.sampled_from([0, 1, 3, stride])) for stride in contiguous_strides(shape)) for _ in "ab"]
    walks.append(contiguous_strides(shape))
    merged, strides = coalesce(shape, walks)
    assert 1 not in merged
    for walk, short in zip(walks, strides, strict=True):
        before, after = elements_of(Layout(shape, walk)), elements_of(Layout(merged, short))
        np.testing.assert_array_equal(before.reshape(-1), after.reshape(-1))


@given(left=shapes(), right=shapes())
def test_shapes_broadcast_as_in_numpy(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    try:
        want = np.broadcast_shapes(left, right)
    except ValueError:
        with pytest.raises(ShapeError, match=r"do not broadcast: axis -\d+ differs"):
            broadcast_shapes(left, right)
        return
    assert broadcast_shapes(left, right) == want


def test_broadcasting_of_no_shape_and_of_three() -> None:
    assert broadcast_shapes() == ()
    assert broadcast_shapes((2, 1), (3,), ()) == (2, 3)


@pytest.mark.parametrize(
    ("shape", "strides"), [((), ()), ((5,), (1,)), ((2, 3, 4), (12, 4, 1)), ((2, 0, 4), (4, 4, 1)), ((1, 1), (1, 1))]
)
def test_contiguous_strides(shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    assert contiguous_strides(shape) == strides


def test_axes_count_from_either_end() -> None:
    assert [normalize_axis(axis, 3) for axis in (-3, -1, 0, 2)] == [0, 2, 0, 2]
    for axis in (-4, 3):
        with pytest.raises(ShapeError, match=f"axis {axis} is out of range for a tensor of 3 axes"):
            normalize_axis(axis, 3)


def test_shapes_from_callers() -> None:
    assert checked_shape(4) == (4,)
    sizes: Any = [np.int64(2), 3]
    assert checked_shape(sizes) == (2, 3)
    with pytest.raises(ShapeError, match=r"shape \(2, -1\) has a negative size"):
        checked_shape((2, -1))
    with pytest.raises(ShapeError, match="whole numbers"):
        checked_shape((2.5,))  # type: ignore[arg-type]


def test_the_ellipsis_and_missing_axes_are_written_out() -> None:
    every = slice(None)
    assert expand_ellipsis((1, Ellipsis, None), 3) == [1, every, every, None]
    assert expand_ellipsis((), 2) == [every, every]
    assert expand_ellipsis((Ellipsis, 0, 1), 2) == [0, 1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda layout: layout.slice((0, 0, 0)), "3 indices for a tensor of 2 axes"),
        (lambda layout: layout.slice((Ellipsis, Ellipsis)), "more than one Ellipsis"),
        (lambda layout: layout.slice(2), "index 2 is out of range for axis 0 of size 2"),
        (lambda layout: layout.slice((0, -4)), "index -4 is out of range for axis 1 of size 3"),
        (lambda layout: layout.slice("a"), "index 'a' is not an integer, a slice, None or an Ellipsis"),
        (lambda layout: layout.slice(True), "index True is not an integer"),
        (lambda layout: layout.slice(1.0), "index 1.0 is not an integer"),
        (lambda layout: layout.transpose((0, 0)), r"axes \(0, 0\) are not a permutation of the 2 axes"),
        (lambda layout: layout.broadcast_to((3,)), r"shape \(2, 3\) does not broadcast to \(3,\)"),
        (lambda layout: layout.broadcast_to((2, 4)), r"shape \(2, 3\) does not broadcast to \(2, 4\)"),
    ],
)
def test_what_does_not_fit_is_named(make: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        make(Layout.contiguous((2, 3)))


def test_numpy_integers_index_too() -> None:
    index: Any = (np.int64(-1), np.uint8(1))
    assert Layout.contiguous((4, 2)).slice(index).offset == 7
