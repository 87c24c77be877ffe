"""softmax and norms, activations and rope on the emulated device."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lbrx import ops
from lbrx.devices.metal.ops import activations
from lbrx.devices.metal.ops.arrays import upload
from lbrx.devices.metal.ops.rope import apply_rope
from lbrx.devices.metal.ops.rows import layer_norm, rms_norm, softmax
from lbrx.errors import ShapeError, UsageError
from lbrx.tensors.rope import RopeFrequencies, RopeStyle
from support.kernel_contexts import Array, check, context, down, numbers, up
from support.metal_shaders import Order, needs_clang

pytestmark = needs_clang
SHAPES = ((1, 1), (3, 31), (2, 5, 129), (2, 1000), (1, 4099))
ROW_BOUND = 2e-6


def wide(array: Array) -> Array:
    return array.astype(np.float64)


@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_softmax(dtype: str, order: Order) -> None:
    metal = context(order)
    for shape in SHAPES:
        x = (8 * numbers(*shape)).astype(numbers(1, dtype=dtype).dtype)
        distances = wide(x) - wide(x).max(-1, keepdims=True)
        expected = np.exp(distances) / np.exp(distances).sum(-1, keepdims=True)
        bound = (ROW_BOUND + 2.0**-24 * np.abs(distances)) * expected  # exp magnifies the rounding of a difference
        check(down(metal, softmax(metal, up(metal, x))), expected, bound, dtype)


def test_softmax_of_large_numbers_and_infinities() -> None:
    metal = context()
    x = np.array([[1e30, 0, -1e30], [-np.inf, 5, 5], [-200, 0, 0]], np.float32)
    expected = np.array([[1, 0, 0], [0, 0.5, 0.5], [0, 0.5, 0.5]])
    check(down(metal, softmax(metal, up(metal, x))), expected, 1e-30)


@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize("add_one", [False, True])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_rms_norm(dtype: str, add_one: bool, order: Order) -> None:
    metal = context(order)
    for shape in SHAPES:
        x, weight = numbers(*shape, dtype=dtype, seed=1), numbers(shape[-1], seed=2)
        scale = 1 / np.sqrt(np.mean(wide(x) ** 2, -1, keepdims=True) + 1e-5)
        expected = wide(x) * scale * (wide(weight) + add_one)
        result = rms_norm(metal, up(metal, x), up(metal, weight), 1e-5, add_one)
        check(down(metal, result), expected, ROW_BOUND * np.abs(wide(x) * scale) * (1 + np.abs(wide(weight))), dtype)


@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_layer_norm(dtype: str, has_bias: bool, order: Order) -> None:
    metal = context(order)
    for shape in SHAPES:
        x = numbers(*shape, dtype=dtype, seed=1) + numbers(1, dtype=dtype)
        weight, bias = numbers(shape[-1], seed=2), numbers(shape[-1], seed=3)
        centred = wide(x) - wide(x).mean(-1, keepdims=True)
        scale = 1 / np.sqrt(np.mean(centred**2, -1, keepdims=True) + 1e-5)
        expected = centred * scale * wide(weight) + wide(bias) * has_bias
        result = layer_norm(metal, up(metal, x), up(metal, weight), up(metal, bias) if has_bias else None)
        bound = ROW_BOUND * ((1 + np.abs(wide(x))) * scale * np.abs(wide(weight)) + np.abs(expected))
        check(down(metal, result), expected, bound, dtype)


def test_norms_agree_with_the_cpu() -> None:
    metal = context()
    x, weight, bias = numbers(3, 200, seed=1), numbers(200, seed=2), numbers(200, seed=3)
    on_device = up(metal, x), up(metal, weight)
    check(down(metal, rms_norm(metal, *on_device)), wide(ops.rms_norm(x, weight)), 1e-5)
    check(down(metal, layer_norm(metal, *on_device, up(metal, bias))), wide(ops.layer_norm(x, weight, bias)), 1e-5)
    check(down(metal, softmax(metal, on_device[0])), wide(ops.softmax(x)), 1e-6)


POINTS = np.concatenate([np.linspace(-13, 13, 2001), [-1e30, -40, -0.0, 1e-30, 40, 1e30]]).astype(np.float32)


def exact_gelu(x: Array) -> Array:
    return np.array([0.5 * value * math.erfc(-value / math.sqrt(2)) for value in x.tolist()])


def exact_gelu_tanh(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return x / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def exact_silu(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return x / (1 + np.exp(-x))


ACTIVATIONS: dict[str, tuple[Callable[..., Any], Callable[[Array], Array]]] = {
    "silu": (activations.silu, exact_silu),
    "gelu": (activations.gelu, exact_gelu),
    "gelu_tanh": (lambda metal, x: activations.gelu(metal, x, "tanh"), exact_gelu_tanh),
    "softcap": (lambda metal, x: activations.softcap(metal, x, 5.0), lambda x: 5 * np.tanh(x / 5)),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_accurate_relative_to_the_result(name: str) -> None:
    function, exact = ACTIVATIONS[name]
    metal = context()
    expected = exact(wide(POINTS))
    # exp(-2 u) magnifies the rounding of u, which grows with the cube of x
    steep = 1e-5 if name == "gelu_tanh" else 2e-6
    check(down(metal, function(metal, up(metal, POINTS))), expected, steep * np.abs(expected) + 1e-36)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_gated_activations(dtype: str) -> None:
    metal = context("reverse")
    gate, other = numbers(3, 7, dtype=dtype, seed=1), numbers(3, 7, dtype=dtype, seed=2)
    expected = exact_silu(wide(gate)) * wide(other)
    result = activations.silu_mul(metal, up(metal, gate), up(metal, other))
    check(down(metal, result), expected, 2e-6 * np.abs(expected), dtype)
    expected = exact_gelu_tanh(wide(gate)) * wide(other)
    result = activations.gelu_mul(metal, up(metal, gate), up(metal, other))
    check(down(metal, result), expected, 2e-6 * np.abs(expected), dtype)


@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize("style", ["neox", "interleaved"])
def test_rope_has_the_bits_of_the_cpu(style: RopeStyle, order: Order) -> None:
    metal = context(order)
    frequencies = RopeFrequencies(10000.0 ** -(np.arange(5) / 5), scale=1.25)
    for heads, rows, columns in ((1, 1, 10), (3, 7, 13)):
        x = numbers(heads, rows, columns)
        positions = np.arange(rows) + 1000
        result = down(metal, apply_rope(metal, up(metal, x), positions, frequencies, style))
        assert np.array_equal(result, ops.apply_rope(x, positions, frequencies, style))


def test_rope_of_halves() -> None:
    metal = context()
    x, frequencies = numbers(2, 3, 8, dtype="f16"), RopeFrequencies(np.array([1.0, 0.1]))
    expected = ops.apply_rope(x.astype(np.float32), [0, 1, 2], frequencies)
    check(down(metal, apply_rope(metal, up(metal, x), [0, 1, 2], frequencies)), wide(expected), 0.0, "f16")


def test_empty_rows() -> None:
    metal = context()
    empty, none = upload(metal, np.zeros((0, 4), np.float32)), upload(metal, np.zeros((3, 0), np.float32))
    weight = upload(metal, np.ones(4, np.float32))
    assert softmax(metal, empty).shape == rms_norm(metal, empty, weight).shape == (0, 4)
    assert softmax(metal, none).shape == activations.silu(metal, none).shape == (3, 0)
    assert apply_rope(metal, empty, [], RopeFrequencies(np.array([1.0]))).shape == (0, 4)


def test_rows_without_races() -> None:
    metal = context(find_races=True)
    x, weight = up(metal, numbers(2, 700)), up(metal, numbers(700))
    down(metal, softmax(metal, x))
    down(metal, rms_norm(metal, x, weight))
    down(metal, layer_norm(metal, x, weight, weight))
    down(metal, activations.silu_mul(metal, x, x))
    down(metal, apply_rope(metal, x, [0, 1], RopeFrequencies(np.array([1.0, 0.5]))))


def test_what_does_not_fit_is_an_error() -> None:
    metal = context()
    x = upload(metal, np.zeros((2, 3), np.float32))
    with pytest.raises(ShapeError, match=r"the weight of rms_norm has shape \(2, 3\); expected \(3,\)"):
        rms_norm(metal, x, x)
    with pytest.raises(ShapeError, match="at least one axis"):
        softmax(metal, upload(metal, np.zeros((), np.float32)))
    with pytest.raises(UsageError, match="the soft cap is -1"):
        activations.softcap(metal, x, -1)
    with pytest.raises(ShapeError, match="rope: values of shape"):
        apply_rope(metal, x, [0], RopeFrequencies(np.array([1.0])))
