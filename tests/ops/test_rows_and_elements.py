"""softmax, norms and activations: against float64, over odd shapes, extreme values and threads."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lbrx
from lbrx.errors import ShapeError, UsageError
from lbrx.ops import gelu, gelu_mul, layer_norm, relu, relu_squared, rms_norm, silu, silu_mul, softcap, softmax
from support.references import THREADS, Array, normal, wide

LENGTHS = [0, 1, 2, 7, 8, 9, 31, 100]
moderate = st.floats(-1e4, 1e4, width=32)
any_finite = st.floats(allow_nan=False, allow_infinity=False, width=32)


def rows(elements: st.SearchStrategy[float] = moderate) -> st.SearchStrategy[Array]:
    return st.sampled_from(LENGTHS).flatmap(lambda size: hnp.arrays(np.float32, (3, size), elements=elements))


@settings(max_examples=100, deadline=None)
@given(rows(any_finite))
def test_softmax(x: Array) -> None:
    got = softmax(x)
    if x.size:
        weights = np.exp(wide(x) - wide(x).max(-1, keepdims=True))
        want = weights / weights.sum(-1, keepdims=True)
        # x - max is rounded to f32: half a unit of a difference of up to 88
        assert (abs(got - want) <= want * 2.0**-18 + 2e-38).all()
    assert got.shape == x.shape


@settings(max_examples=100, deadline=None)
@given(rows(any_finite), st.sampled_from([0.5, 1e-6]), st.booleans())
def test_rms_norm(x: Array, eps: float, add_one: bool) -> None:
    weight = normal(x.shape[1], seed=3)
    got = rms_norm(x, weight, eps, add_one)
    if x.size:
        square = (wide(x) ** 2).mean(-1, keepdims=True) + float(np.float32(eps))
        want = wide(x) / np.sqrt(square) * (wide(weight) + add_one)
        factors = abs(wide(x) / np.sqrt(square)) * (abs(wide(weight)) + add_one)
        assert (abs(got - want) <= 2.0**-21 * factors + 1e-37).all()


@settings(max_examples=100, deadline=None)
@given(rows(), st.sampled_from([0.5, 1e-5]), st.booleans())
def test_layer_norm(x: Array, eps: float, has_bias: bool) -> None:
    weight, bias = normal(x.shape[1], seed=3), normal(x.shape[1], seed=4)
    got = layer_norm(x, weight, bias if has_bias else None, eps)
    if x.size:
        values = wide(x)
        mean = values.mean(-1, keepdims=True)
        root = np.sqrt(values.var(-1, keepdims=True) + float(np.float32(eps)))
        want = (values - mean) / root * weight + (bias if has_bias else 0)
        largest = (abs(values) + abs(mean)) / root * abs(weight) + abs(bias)
        assert (abs(got - want) <= 2.0**-20 * largest + 1e-37).all()


def _normal_distribution(x: Array) -> Array:
    return np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in x.reshape(-1)]).reshape(x.shape)


def _tanh_gelu(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return x / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _silu(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return x / (1 + np.exp(-x))


ACTIVATIONS: dict[str, tuple[Callable[[Any], Any], Callable[[Array], Array]]] = {
    "silu": (silu, _silu),
    "gelu": (gelu, lambda x: x * _normal_distribution(x)),
    "gelu tanh": (lambda x: gelu(x, "tanh"), _tanh_gelu),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@settings(max_examples=100, deadline=None)
@given(rows(any_finite))
def test_activations(name: str, x: Array) -> None:
    function, reference = ACTIVATIONS[name]
    want = reference(wide(x))
    # in the far tail the result is a tiny part of x, and has the absolute error of exp's argument
    assert (abs(function(x) - want) <= 1e-6 * abs(want) + 1e-9 * np.minimum(abs(wide(x)), 1) + 1e-34).all()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_near_zero_and_of_nothing(name: str) -> None:
    function, reference = ACTIVATIONS[name]
    x = np.linspace(-8, 8, 4001, dtype=np.float32)
    want = reference(wide(x))
    assert (abs(function(x) - want) <= 1e-6 * abs(want) + 3e-7 * np.exp(-(wide(x) ** 2) / 4) * abs(x)).all()
    assert np.isnan(function(np.float32([np.nan]))).all()
    np.testing.assert_array_equal(function(np.float32([np.inf])), [np.inf])
    assert function(np.empty((0, 4), np.float32)).shape == (0, 4)
    assert function(np.float32(0.0)).shape == ()


def test_gated_activations() -> None:
    gate, up = normal(3, 101), normal(3, 101, seed=1)
    np.testing.assert_array_equal(silu_mul(gate, up), silu(gate) * up)
    np.testing.assert_array_equal(gelu_mul(gate, up), gelu(gate, "tanh") * up)
    np.testing.assert_array_equal(gelu_mul(gate, up, "erf"), gelu(gate) * up)
    with pytest.raises(ShapeError, match=r"\(3, 101\), but up has \(101,\)"):
        silu_mul(gate, up[0])
    with pytest.raises(UsageError, match="'erf' or 'tanh'"):
        gelu(gate, "other")  # type: ignore[arg-type]


@settings(max_examples=50, deadline=None)
@given(rows(), st.floats(0.5, 100.0, width=32))
def test_softcap(x: Array, cap: float) -> None:
    assert (abs(softcap(x, cap) - cap * np.tanh(wide(x) / cap)) <= 4e-7 * cap).all()


def test_infinities_and_nan_in_rows() -> None:
    x = np.float32([[0, -np.inf, 1], [np.nan, 0, 0], [np.inf, 0, 0], [0, 0, 0]])
    got = softmax(x)
    assert got[0, 1] == 0
    assert np.isfinite(got[0]).all()
    assert np.isnan(got[1]).all()
    assert np.isnan(got[2, 0])
    assert np.isnan(rms_norm(x, np.ones(3, np.float32))[1]).all()
    np.testing.assert_allclose(softmax(np.float32([[-3e38, 3e38]])), [[0, 1]])


@pytest.mark.parametrize("function", [softmax, silu, gelu, lambda x: rms_norm(x, normal(300))])
def test_the_same_bytes_on_any_number_of_threads(function: Callable[[Any], Any]) -> None:
    x = normal(1000, 300)
    found = []
    for threads in THREADS:
        with lbrx.using(threads=threads):
            found.append(function(x).tobytes())
    assert found[0] == found[1] == found[2]


def test_tensors_and_other_dtypes_are_taken() -> None:
    x = normal(5, 16)
    half = lbrx.tensor(x).to("bf16").realize()
    np.testing.assert_array_equal(softmax(half), softmax(half.to("f32").numpy()))
    np.testing.assert_array_equal(rms_norm(x[:, ::2], half[0, ::2]), rms_norm(x[:, ::2].copy(), half[0, ::2]))


def test_bad_shapes() -> None:
    with pytest.raises(ShapeError, match=r"the weight of rms_norm has shape \(3,\); expected \(4,\)"):
        rms_norm(normal(2, 4), normal(3))
    with pytest.raises(ShapeError, match="the bias of layer_norm"):
        layer_norm(normal(2, 4), normal(4), normal(2, 4))
    with pytest.raises(ShapeError, match="softmax takes an array with at least one axis"):
        softmax(np.float32(1.0))
    with pytest.raises(UsageError, match="soft cap"):
        softcap(normal(3), 0.0)


@settings(max_examples=50, deadline=None)
@given(rows(any_finite))
def test_relu(x: Array) -> None:
    np.testing.assert_array_equal(relu(x), np.maximum(x, 0))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(relu_squared(x), np.maximum(x, 0) ** 2)


def test_relu_of_nan_is_nan() -> None:
    x = np.array([np.nan, -np.inf, np.inf] * 5, np.float32)
    np.testing.assert_array_equal(relu(x), np.array([np.nan, 0, np.inf] * 5, np.float32))
