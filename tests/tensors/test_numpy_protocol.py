"""Every operation that NumPy also has: the same names, parameters and results, for all dtypes and on all devices."""

from __future__ import annotations

import gc
import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lbrx
from lbrx.engine.plan_cache import _watched
from lbrx.registry import DEVICES
from lbrx.tensors import dlpack
from lbrx.tensors.dtype import DTYPES
from lbrx.tensors.numpy_protocol import FUNCTIONS
from lbrx.tensors.tensor import Tensor
from support.devices import device_fixture
from support.strategies import assert_same, numpy_type, values, widened

device = device_fixture(DEVICES)
pytestmark = pytest.mark.filterwarnings("ignore::lbrx.engine.device.CpuFallback")

UNARY = (np.negative, np.absolute, np.sign, np.sqrt, np.exp, np.log, np.sin, np.cos, np.arccos, np.tanh, np.floor)
UNARY += (np.rint, np.isnan, np.isinf, np.isfinite, np.square, np.invert)
BINARY = (np.add, np.subtract, np.multiply, np.divide, np.floor_divide, np.remainder, np.minimum, np.maximum, np.power)
BINARY += (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal)
BINARY += (np.bitwise_and, np.bitwise_or, np.bitwise_xor)
EXACT = {np.sign, np.floor, np.rint, np.isnan, np.isinf, np.isfinite, np.absolute, np.negative}
SHAPES: list[Callable[[Any], Any]] = [
    lambda x: np.reshape(x, (4, 6)),
    lambda x: np.ravel(x),
    lambda x: np.transpose(x),
    lambda x: np.transpose(x, (1, 0, 2)),
    lambda x: np.expand_dims(x, 1),
    lambda x: np.squeeze(np.expand_dims(x, (0, 2))),
    lambda x: np.broadcast_to(x, (2, 2, 3, 4)),
    lambda x: np.split(x, 3, axis=1)[1],
    lambda x: np.split(x, [1, 3], axis=2)[2],
    lambda x: np.concatenate([x, x], axis=1),
    lambda x: np.stack([x, x], axis=-1),
    lambda x: np.zeros_like(x),
    lambda x: np.ones_like(x),
    lambda x: np.where(x > 1, x, x),
    lambda x: np.clip(x, 0, 1),
    lambda x: np.any(x, axis=0),
    lambda x: np.all(x, axis=(0, 2)),
    lambda x: np.argmax(x, axis=1),
    lambda x: np.argmin(x, axis=0),
    lambda x: np.max(x, axis=(0, 1)),
    lambda x: np.min(x, axis=0, keepdims=True),
]


@pytest.mark.parametrize("name", DTYPES)
@settings(deadline=None, max_examples=12)
@given(data=st.data())
def test_ufuncs_are_lazy_and_have_numpys_results(name: str, data: st.DataObject) -> None:
    """lbrx computes on half types and on functions of short integers in f32, where NumPy has f16."""
    arrays: list[Any] = [data.draw(values(name, (3, 4))), data.draw(values(name, (4,)))]
    ufunc = data.draw(st.sampled_from(UNARY + BINARY))
    if ufunc is np.power and widened(arrays[1]).dtype.kind in "iu":
        arrays[1] = np.clip(widened(arrays[1]), 0, 6).astype(arrays[1].dtype)
    used = arrays[: ufunc.nin]
    wide = [widened(array) for array in used]
    with np.errstate(all="ignore"):
        try:
            want = np.asarray(ufunc(*wide))
        except TypeError:
            with pytest.raises(TypeError):
                ufunc(*map(lbrx.tensor, used))
            return
        if want.dtype == np.float16:
            want = np.asarray(ufunc(*(array.astype(np.float32) for array in wide)))
    tensors = [lbrx.tensor(array) for array in used]
    expr, plans = _watched(lambda: ufunc(*tensors).expr)
    assert not plans
    result = widened(Tensor(expr).numpy())
    if ufunc is np.rint and result.dtype.kind in "iu":  # NumPy rounds 64-bit integers to f64 first; lbrx keeps them
        assert_same(result, wide[0])
        return
    if ufunc in EXACT:
        assert_same(result, want.astype(result.dtype))
        return
    tolerance = 1e-15 if result.dtype == np.float64 else 3e-7
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(result.astype(np.float64), want.astype(np.float64), rtol=tolerance, atol=1e-37)


@pytest.mark.parametrize("name", [name for name in DTYPES if not DTYPES[name].is_packed])
@pytest.mark.parametrize("number", range(len(SHAPES)))
def test_functions_of_arrays_have_numpys_results(name: str, number: int) -> None:
    array = (np.arange(24) % 5).reshape(2, 3, 4).astype(numpy_type(name))
    got, want = SHAPES[number](lbrx.tensor(array)), SHAPES[number](array)
    assert isinstance(got, Tensor)
    result = got.numpy()
    assert result.shape == want.shape
    assert_same(widened(result), widened(want).astype(widened(result).dtype))


@pytest.mark.parametrize("function", [np.sum, np.mean, np.std, np.var, np.prod])
@pytest.mark.parametrize("axis", [None, 0, 1, -1, (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("name", ["f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u8", "bool"])
def test_totals_have_numpys_results(name: str, axis: Any, function: Any) -> None:
    array = (np.arange(24) % 5).reshape(2, 3, 4).astype(numpy_type(name))
    want = function(widened(array).astype(np.float64), axis=axis, keepdims=True)
    got = function(lbrx.tensor(array), axis=axis, keepdims=True)
    np.testing.assert_allclose(got.numpy().astype(np.float64), want, rtol=3e-7)


WRONG: list[Callable[[Tensor], Any]] = [
    np.tan,
    np.linalg.norm,
    np.sort,
    np.add.reduce,
    lambda x: np.add(x, 1, out=np.zeros(3)),
    lambda x: np.sum(x, out=np.zeros(())),  # type: ignore[call-overload]
    lambda x: np.add(x, 1, where=np.array([True, False, True])),
    lambda x: np.dot(x, x),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("function", WRONG)
def test_other_functions_raise_and_do_not_compute(function: Callable[[Tensor], Any]) -> None:
    with pytest.raises(TypeError):
        function(lbrx.tensor(np.ones(3, np.float32)))


def test_arrays_and_numpy_numbers_on_the_left() -> None:
    x, array = lbrx.tensor([1.0, 2.0]), np.array([3.0, 4.0])
    for got, want in ((array + x, [4.0, 6.0]), (array**x, [3.0, 16.0]), (np.float64(2) * x, [2.0, 4.0])):
        assert isinstance(got, Tensor)
        assert got.tolist() == want


def test_parameters_have_numpys_names() -> None:
    for theirs, ours in FUNCTIONS.items():
        if inspect.isfunction(ours) and ours.__module__.endswith(("reductions", "operators", "shaping")):
            own = list(inspect.signature(ours).parameters)[1:]
            known = [*inspect.signature(theirs).parameters, "min", "max"]
            assert [each for each in own if each not in known] in ([], ["shape"]), theirs


def test_dtypes_are_equal_to_their_names() -> None:
    for name, dtype in DTYPES.items():
        assert dtype == name
        assert dtype == dtype.numpy_name
        assert dtype == dtype.numpy
        assert hash(dtype) == hash(name)
        assert dtype in {name}
        assert dtype != "no dtype"
        assert [other for other in DTYPES if dtype == other] == [name]


def test_bf16_leaves_through_dlpack() -> None:
    capsule = lbrx.tensor([1.0, -2.0], "bf16").__dlpack__()
    (managed, held, _shape) = next(iter(dlpack._alive.values()))
    assert (managed.tensor.code, managed.tensor.bits, managed.tensor.ndim) == (4, 16, 1)
    assert held.tolist() == [0x3F80, 0xC000]
    del capsule, managed
    gc.collect()
    assert not dlpack._alive
    assert np.from_dlpack(lbrx.tensor([1.5], "f16")).tolist() == [1.5]


def test_one_element_is_formatted_and_rounded_as_a_number() -> None:
    x = lbrx.tensor([1.234, 2.0])
    assert f"{x.sum():.2f} {x[:1]:.1f}" == "3.23 1.2"
    assert round(x.sum(), 1) == 3.2
    assert round(x, 1).tolist() == [1.2, 2.0]


def test_what_a_notebook_shows() -> None:
    x = lbrx.tensor([1.0, 2.0, math.nan], name="<w>")
    assert "&lt;w&gt;" in x._repr_html_()
    assert "2 values from 1 to 2" in x._repr_html_()
    assert "<svg" not in (x + 1)._repr_html_()
