"""Element-wise arithmetic against NumPy over the compute types: values, dtypes, NaN and infinities, wrap-around."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lbrx
from support.devices import flushed
from support.strategies import assert_same, computed_type, numpy_type, special_values, values, widened

PAIRS = [
    ("f32", "f32"),
    ("bf16", "f16"),
    ("f8_e4m3", "f8_e5m2"),
    ("f64", "f32"),
    ("i64", "f32"),
    ("i16", "bf16"),
    ("i32", "i32"),
    ("i8", "u8"),
    ("u8", "u8"),
    ("bool", "i8"),
    ("i4", "i2"),
]
BINARY: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "add": (lambda a, b: a + b, np.add),
    "sub": (lambda a, b: a - b, np.subtract),
    "mul": (lambda a, b: a * b, np.multiply),
    "div": (lambda a, b: a / b, np.true_divide),
}
EXTREMES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "minimum": (lambda a, b: a.minimum(b), np.minimum),
    "maximum": (lambda a, b: a.maximum(b), np.maximum),
}
UNARY_OF_NUMBERS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "neg": (lambda a: -a, np.negative),
    "abs": (abs, np.abs),
    "sign": (lambda a: a.sign(), np.sign),
    "floor": (lambda a: a.floor(), lambda a: np.floor(a) if a.dtype.kind == "f" else a),
    "round": (lambda a: a.round(), np.round),
}
FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "exp": (lambda a: a.exp(), np.exp),
    "log": (lambda a: a.log(), np.log),
    "sin": (lambda a: a.sin(), np.sin),
    "cos": (lambda a: a.cos(), np.cos),
    "acos": (lambda a: a.acos(), np.arccos),
}
COUNT = 40


def reference(function: Any, left: Any, right: Any, computed: np.dtype[Any]) -> Any:
    with np.errstate(all="ignore"):
        return function(widened(left).astype(computed), widened(right).astype(computed))


def arithmetic(function: Any, left: Any, right: Any, computed: np.dtype[Any]) -> Any:
    with np.errstate(all="ignore"):
        operands = (flushed(widened(values).astype(computed)) for values in (left, right))
        return flushed(function(*operands))


@pytest.mark.parametrize(("left", "right"), PAIRS, ids=lambda name: str(name))
@settings(deadline=None, max_examples=20)
@given(data=st.data())
def test_arithmetic_is_numpys_over_the_compute_types(left: str, right: str, data: st.DataObject) -> None:
    a, b = data.draw(values(left, COUNT)), data.draw(values(right, COUNT))
    computed = computed_type(left, right)
    x, y = lbrx.tensor(a), lbrx.tensor(b)
    got = lbrx.evaluate(*(ours(x, y) for ours, _ in [*BINARY.values(), *EXTREMES.values()]))
    for (_, theirs), result in zip(BINARY.values(), got, strict=False):
        assert_same(result, arithmetic(theirs, a, b, computed), signed_zeros=True)
    for (_, theirs), result in zip(EXTREMES.values(), got[len(BINARY) :], strict=True):
        assert_same(result, reference(theirs, a, b, computed))


@pytest.mark.parametrize("name", ["f64", "f32", "bf16", "i64", "i8", "u8", "i4"])
@settings(deadline=None, max_examples=20)
@given(data=st.data())
def test_unary_operations(name: str, data: st.DataObject) -> None:
    array = data.draw(values(name, COUNT))
    x = lbrx.tensor(array)
    got = lbrx.evaluate(*(ours(x).to(x.dtype.compute) for ours, _ in UNARY_OF_NUMBERS.values()))
    for (_, theirs), result in zip(UNARY_OF_NUMBERS.values(), got, strict=True):
        with np.errstate(all="ignore"):
            assert_same(result, theirs(widened(array)).astype(computed_type(name)), signed_zeros=True)


def test_rounding_an_integer_changes_nothing_not_even_its_dtype() -> None:
    x = lbrx.tensor([1, -2], "i4")
    assert x.round().dtype is x.dtype
    assert x.floor().expr is x.expr


def test_bools_add_as_or_and_multiply_as_and() -> None:
    a, b = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    x, y = lbrx.tensor(a), lbrx.tensor(b)
    total, product, low, magnitude = lbrx.evaluate(x + y, x * y, x.minimum(y), abs(x))
    assert_same(total, a + b)
    assert_same(product, a * b)
    assert_same(low, np.minimum(a, b))
    assert_same(magnitude, a)
    assert (x / y).dtype.name == "f64"


@pytest.mark.parametrize(
    ("name", "result"),
    [("f64", "f64"), ("f32", "f32"), ("bf16", "f32"), ("i64", "f64"), ("i32", "f64"), ("i16", "f32"), ("bool", "f32")],
)
def test_functions_of_floats_and_integers(name: str, result: str) -> None:
    everyday = np.linspace(-3, 3, 50).astype(np.float64).astype(numpy_type(name))
    array = np.concatenate([special_values(name), everyday])
    x = lbrx.tensor(array)
    tolerance = 5e-7 if result == "f32" else 1e-14
    got = lbrx.evaluate(x.sqrt(), *(ours(x) for ours, _ in FUNCTIONS.values()))
    wide = widened(array).astype(numpy_type(result))
    with np.errstate(all="ignore"):
        assert_same(got[0], np.sqrt(wide), signed_zeros=True)
        for (ours, (_, theirs)), values_found in zip(FUNCTIONS.items(), got[1:], strict=True):
            exact = theirs(wide.astype(np.float64)).astype(numpy_type(result))
            assert values_found.dtype == exact.dtype
            subnormal = 1e-37 if result == "f32" else 1e-307
            np.testing.assert_allclose(values_found, exact, rtol=tolerance, atol=subnormal, err_msg=ours)


@pytest.mark.parametrize(
    ("name", "number", "result"),
    [
        ("f32", 3, "f32"),
        ("f32", 0.1, "f32"),
        ("bf16", 0.1, "f32"),
        ("f64", 0.1, "f64"),
        ("i8", 3, "i8"),
        ("i8", 0.5, "f64"),
        ("u8", True, "u8"),
        ("bool", 3, "i64"),
        ("bool", 0.5, "f64"),
    ],
)
def test_numbers_are_weak_within_their_kind(name: str, number: Any, result: str) -> None:
    array = special_values(name)
    got = (lbrx.tensor(array) * number, number * lbrx.tensor(array))
    with np.errstate(all="ignore"):
        want = flushed(flushed(widened(array)) * number)
    assert want.dtype == numpy_type(result)
    for product in got:
        assert_same(product.numpy(), want)


def test_tensors_without_axes_are_weak_too() -> None:
    x = lbrx.tensor(np.ones(3, np.float32))
    assert (x * lbrx.tensor(np.float64(0.1))).dtype.name == "f32"
    assert (x + x.sum()).dtype.name == "f32"
    assert (lbrx.tensor(np.ones(3, np.int8)) + lbrx.tensor(np.int64(5))).dtype.name == "i8"
    assert (lbrx.tensor(np.ones(3, np.int8)) + lbrx.tensor(np.float32(5))).dtype.name == "f32"
    assert_same((x * lbrx.tensor(np.float64(0.1))).numpy(), np.full(3, 0.1, np.float32))


def test_values_without_axes_are_computed_as_those_with_axes() -> None:
    one, two = lbrx.tensor(np.float32(1.5)), lbrx.tensor(np.float32(-0.25))
    assert_same((one / two - 1).numpy(), np.float32(-7))
    assert_same((one + lbrx.tensor(np.float64(1))).numpy(), np.float64(2.5))
    assert_same((lbrx.tensor(np.int8(100)) + lbrx.tensor(np.int8(100))).numpy(), np.int8(-56))
    assert_same((lbrx.tensor(np.int8(1)) / 4).numpy(), np.float64(0.25))
    assert float((one * 2).exp()) == pytest.approx(np.exp(3.0), rel=1e-7)
    assert (-one).item() == -1.5
    assert int(lbrx.tensor(np.int16(7))) == 7


def test_numpy_arrays_and_scalars_take_part_from_either_side() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    x = lbrx.tensor(array)
    for mixed in (array + x, x + array, np.float32(1) * array + x):
        assert isinstance(mixed, lbrx.Tensor)
        assert_same(mixed.numpy(), array + array)
    assert isinstance(np.float32(2) * x, lbrx.Tensor)
    assert_same((1 - x).numpy(), 1 - array)
    assert_same((1 / (x + 1)).numpy(), 1 / (array + 1))


def test_a_shared_value_is_computed_once_and_serves_all_results() -> None:
    array = np.linspace(-1, 1, 100, dtype=np.float32)
    x = lbrx.tensor(array)
    shared = x * 3 + 1
    left, right, whole = lbrx.evaluate(shared * 2, shared * shared, shared)
    assert_same(left, (array * 3 + 1) * 2)
    assert_same(right, (array * 3 + 1) * (array * 3 + 1))
    assert_same(whole, array * 3 + 1)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4, 2)])
def test_empty_tensors(shape: tuple[int, ...]) -> None:
    x = lbrx.tensor(np.zeros(shape, np.float32))
    assert_same((x * 2 + 1).numpy(), np.zeros(shape, np.float32))
    assert_same(x.to("bf16").numpy(), np.zeros(shape, numpy_type("bf16")))


def test_rows_can_be_walked_through() -> None:
    array = np.arange(6, dtype=np.float32).reshape(3, 2)
    rows = list(lbrx.tensor(array))
    assert len(rows) == 3
    assert_same(rows[2].numpy(), array[2])
