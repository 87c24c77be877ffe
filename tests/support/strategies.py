"""Hypothesis strategies for tensors: element types, values, shapes and chains of views; and exact comparison.

Values are drawn as bits, so that NaN, infinities, subnormals and the ends of every range are as likely as the rest.
Compiled kernels are shared by structure: tests draw values and layouts freely, but operations and dtypes from lists.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import hypothesis.extra.numpy as hnp
import ml_dtypes
import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from lbrx.tensors.dtype import DTYPES, dtype

Array = npt.NDArray[Any]
View = tuple[str, Any]
Sizes = int | tuple[int, ...] | st.SearchStrategy[tuple[int, ...]]

FLOATS = ("f64", "f32", "f16", "bf16", "f8_e4m3", "f8_e5m2")
INTEGERS = ("i64", "i32", "i16", "i8", "u8")
PACKED = ("i4", "i2")
MAX_ELEMENTS = 2_000


def numpy_type(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a dtype's name."""
    return DTYPES[name].numpy


def widened(array: Array) -> Array:
    """The values in a type that NumPy computes in: half types as float32, packed integers as int8."""
    return array.astype(dtype(array.dtype).compute.numpy, copy=False)


def computed_type(*names: str) -> np.dtype[Any]:
    """The type in which arithmetic between tensors of these dtypes is done."""
    return np.dtype(np.result_type(*(DTYPES[name].compute.numpy for name in names)))


def assert_same(got: Any, want: Any, *, signed_zeros: bool = False) -> None:
    """The same dtype, shape and values; NaN equals NaN whatever its payload."""
    left, right = np.asarray(got), np.asarray(want)
    assert left.dtype == right.dtype
    assert left.shape == right.shape
    np.testing.assert_array_equal(widened(left), widened(right))
    if signed_zeros:
        numbers = ~np.isnan(widened(right))
        np.testing.assert_array_equal(np.signbit(widened(left))[numbers], np.signbit(widened(right))[numbers])


def float_limits(name: str) -> Any:
    """The ``finfo`` of a floating dtype's name."""
    return ml_dtypes.finfo(numpy_type(name))  # type: ignore[no-untyped-call]


def special_values(name: str) -> Array:
    """Zeros, ones, ends of the range and, for floats, subnormals, infinities and NaN where the dtype has them."""
    numpy_dtype = numpy_type(name)
    if name == "bool":
        return np.array([False, True])
    if name not in FLOATS:
        bits = DTYPES[name].bits
        low, high = (0, 2**bits - 1) if name == "u8" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        return np.array([0, 1, low, low + 1, high, high - 1], np.int64).astype(numpy_dtype)
    info = float_limits(name)
    numbers = [0.0, 1.0, 0.5, 1.5, 2.5, float(info.max), float(info.tiny), float(info.smallest_subnormal)]
    numbers += [1.0 + float(info.eps), math.inf, math.nan]
    with np.errstate(all="ignore"):
        return np.array([*numbers, *(-number for number in numbers)], np.float64).astype(numpy_dtype)


def values(name: str, shape: Sizes) -> st.SearchStrategy[Array]:
    """Arrays of a dtype: special values, everyday values and any bits whatever."""
    numpy_dtype = numpy_type(name)
    if name in PACKED:
        low, high = (-8, 7) if name == "i4" else (-2, 1)
        return hnp.arrays(np.int8, shape, elements=st.integers(low, high)).map(lambda array: array.astype(numpy_dtype))
    if name == "bool":
        return hnp.arrays(np.bool_, shape)
    carrier = np.dtype(f"u{numpy_dtype.itemsize}")
    specials = special_values(name).view(carrier).tolist()
    everyday = np.linspace(-4, 4, 33).astype(numpy_dtype).view(carrier).tolist()
    anything = st.integers(0, 2 ** (8 * numpy_dtype.itemsize) - 1)
    elements = st.one_of(st.sampled_from(specials), st.sampled_from(everyday), anything)
    return hnp.arrays(carrier, shape, elements=elements).map(lambda array: array.view(numpy_dtype))


def finite_values(shape: Sizes) -> st.SearchStrategy[Array]:
    """float32 numbers without NaN and infinities."""
    return hnp.arrays(np.float32, shape, elements=st.floats(-1e6, 1e6, width=32))


def shapes(min_axes: int = 0, max_axes: int = 4, min_size: int = 0) -> st.SearchStrategy[tuple[int, ...]]:
    """Small shapes, without axes and with empty axes too."""
    return hnp.array_shapes(min_dims=min_axes, max_dims=max_axes, min_side=min_size, max_side=5)


@st.composite
def _slices(draw: st.DrawFn, size: int) -> slice:
    """Slices with ends inside and beyond an axis and steps of either sign."""
    ends = st.none() | st.integers(-size - 2, size + 2)
    return slice(draw(ends), draw(ends), draw(st.sampled_from([None, 1, 2, 3, 7, -1, -2, -3, -9])))


@st.composite
def _index(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """A basic index: integers, slices with any step, None and an Ellipsis in the place of some axes."""
    items: list[Any] = []
    for size in shape:
        choices: list[st.SearchStrategy[Any]] = [
            _slices(size),
            st.just(slice(None)),
            st.just(slice(None, None, -1)),
            st.just(slice(None, None, 2)),
        ]
        if size:
            choices.append(st.integers(-size, size - 1))
        items.append(draw(st.one_of(choices)))
    if items and draw(st.sampled_from([False, True])):
        start = draw(st.integers(0, len(items)))
        stop = draw(st.integers(start, len(items)))
        items[start:stop] = [Ellipsis]
    if draw(st.booleans()):
        items.insert(draw(st.integers(0, len(items))), None)
    return tuple(items)


@st.composite
def _reshape(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Another shape of equally many elements, perhaps with one size left to be found."""
    rest = math.prod(shape)
    if rest == 0:
        return tuple(draw(st.permutations(shape)))
    sizes: list[int] = []
    while rest > 1 and len(sizes) < 4:
        size = draw(st.sampled_from([d for d in range(1, rest + 1) if rest % d == 0]))
        sizes.append(size)
        rest //= size
    sizes.append(rest)
    if draw(st.booleans()):
        sizes[draw(st.integers(0, len(sizes) - 1))] = -1
    return tuple(sizes)


@st.composite
def view_chains(draw: st.DrawFn, shape: tuple[int, ...], max_length: int = 4) -> list[View]:
    """Views to be applied one after another to a tensor of a shape; see ``apply_views``."""
    current = np.zeros(shape, np.int8)
    chain: list[View] = []
    for _ in range(draw(st.integers(0, max_length))):
        numpy_dtype = draw(st.sampled_from(["slice", "slice", "transpose", "reshape", "broadcast"]))
        if numpy_dtype == "slice":
            argument: Any = draw(_index(current.shape))
        elif numpy_dtype == "transpose":
            argument = tuple(draw(st.permutations(range(current.ndim))))
        elif numpy_dtype == "reshape":
            argument = draw(_reshape(current.shape))
        else:
            grown = tuple(draw(st.integers(1, 3)) if size == 1 else size for size in current.shape)
            argument = (*draw(st.sampled_from([(), (2,), (1, 3)])), *grown)
        following = apply_view(current, (numpy_dtype, argument))
        if following.size > MAX_ELEMENTS or following.ndim > 6:
            break
        chain.append((numpy_dtype, argument))
        current = following
    return chain


def apply_view(value: Any, view: View) -> Any:
    """The view of an array or of a tensor."""
    numpy_dtype, argument = view
    if numpy_dtype == "slice":
        found = value[argument]
        return np.asarray(found) if isinstance(found, np.generic) else found
    if numpy_dtype == "transpose":
        return value.transpose(*argument) if argument else value
    if numpy_dtype == "reshape":
        return value.reshape(argument)
    return np.broadcast_to(value, argument) if isinstance(value, np.ndarray) else value.broadcast_to(argument)


def apply_views(value: Any, chain: Sequence[View]) -> Any:
    """All views of a chain, one after another."""
    for view in chain:
        value = apply_view(value, view)
    return value
