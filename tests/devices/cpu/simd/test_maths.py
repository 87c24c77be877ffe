"""The vector maths against NumPy's float64 functions."""

from __future__ import annotations

import math
import platform
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from numba import njit
from numba.core.errors import TypingError

from lbrx.devices.cpu.simd import maths, scalars

Floats = np.ndarray[Any, np.dtype[np.float32]]
Doubles = np.ndarray[Any, np.dtype[np.float64]]

REFERENCES: dict[str, Callable[[Any], Any]] = {
    "exp_f32": np.exp,
    "log_f32": np.log,
    "sin_f32": np.sin,
    "cos_f32": np.cos,
    "acos_f32": np.arccos,
    "tanh_f32": np.tanh,
    "erf_f32": np.vectorize(math.erf),
    "sqrt": np.sqrt,
}
MAX_ULPS = {"exp_f32": 1.0, "log_f32": 1.0, "sin_f32": 2.0, "cos_f32": 2.0, "acos_f32": 1.5, "sqrt": 0.5}
MAX_ULPS |= {"tanh_f32": 2.0, "erf_f32": 2.0}
SMALLEST_SUBNORMAL = np.float32(2.0**-149)
LARGEST = np.finfo(np.float32).max


@cache
def element_loop(name: str) -> Any:
    function = getattr(maths, name)

    def loop(values: Any, out: Any) -> None:
        for i in range(values.size):
            out[i] = function(values[i])

    return njit(loop, nogil=True, error_model="numpy")


def run(name: str, values: Any) -> Floats:
    inputs = np.asarray(values, dtype=np.float32)
    out = np.empty_like(inputs)
    element_loop(name)(inputs, out)
    return out


def reference(name: str, values: Floats) -> Doubles:
    with np.errstate(all="ignore"):
        exact: Doubles = REFERENCES[name](values.astype(np.float64))
    return exact


def ulps(got: Floats, exact: Doubles) -> Doubles:
    """The distance in units of float32's last place at the exact value; infinite where only one is special."""
    with np.errstate(over="ignore"):
        rounded = exact.astype(np.float32)
    special = ~np.isfinite(rounded) | ~np.isfinite(got)
    agree = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    exponents = np.frexp(np.where(special, 1.0, exact))[1]
    unit = np.ldexp(1.0, np.maximum(exponents - 24, -149))
    distance = np.abs(np.where(special, 0.0, got) - np.where(special, 0.0, exact)) / unit
    return np.where(special & ~agree, np.inf, distance)


def assert_accurate(name: str, values: Any) -> None:
    inputs = np.asarray(values, dtype=np.float32)
    got = run(name, inputs)
    errors = ulps(got, reference(name, inputs))
    worst = int(errors.argmax())
    assert errors[worst] <= MAX_ULPS[name], f"{name}({inputs[worst]!r}) = {got[worst]!r}, {errors[worst]} ulp off"


@pytest.mark.parametrize("name", REFERENCES)
def test_every_range_of_float32_is_within_the_bound(name: str) -> None:
    for sign in (0, 0x80000000):
        bits = np.arange(sign, sign + 0x7F900000, 2039, dtype=np.int64)
        assert_accurate(name, bits.astype(np.uint32).view(np.float32))


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("exp_f32", -104.0, -87.0),  # subnormal results
        ("exp_f32", 88.0, 89.0),  # overflow
        ("exp_f32", -1.0, 1.0),
        ("log_f32", 0.5, 2.0),
        ("log_f32", 0.0, 2.4e-38),  # subnormal arguments
        ("sin_f32", -10.0, 10.0),
        ("sin_f32", 9e4, 1.1e5),
        ("cos_f32", -10.0, 10.0),
        ("cos_f32", 9e4, 1.1e5),
        ("acos_f32", -1.0, 1.0),
        ("acos_f32", 0.49, 0.51),
        ("acos_f32", 0.9999, 1.0001),
        ("tanh_f32", -1.0, 1.0),
        ("tanh_f32", 0.0, 10.0),
        ("erf_f32", -1.5, 1.5),
        ("erf_f32", 0.0, 5.0),
    ],
)
def test_dense_ranges_are_within_the_bound(name: str, low: float, high: float) -> None:
    assert_accurate(name, np.linspace(low, high, 300_001))


@pytest.mark.parametrize("name", ["sin_f32", "cos_f32"])
def test_arguments_next_to_multiples_of_half_pi(name: str) -> None:
    multiples = np.concatenate([np.arange(1, 200_000), np.geomspace(2e5, 1e15, 100_000).round()])
    nearest = (multiples * (math.pi / 2)).astype(np.float32)
    assert_accurate(name, np.concatenate([nearest, np.nextafter(nearest, np.float32(0)), -nearest]))


@pytest.mark.parametrize("name", ["sin_f32", "cos_f32"])
@pytest.mark.parametrize("exponent", [50, 78, 106, 127])
def test_both_sides_of_every_reduction_window(name: str, exponent: int) -> None:
    edge = int(np.float32(2.0**exponent).view(np.int32))
    bits = np.arange(edge - 20_000, edge + 20_000, dtype=np.int32)
    assert_accurate(name, bits.view(np.float32))


@pytest.mark.parametrize("name", REFERENCES)
def test_special_values_are_those_of_numpy(name: str) -> None:
    values = np.array(
        [0.0, -0.0, math.inf, -math.inf, math.nan, -math.nan, LARGEST, -LARGEST, -1.0, 1.1, -1.1, -1e-45],
        dtype=np.float32,
    )
    got = run(name, values)
    exact = reference(name, values)
    with np.errstate(over="ignore"):
        expected = exact.astype(np.float32)
    exactly_known = ~np.isfinite(expected) | (expected == 0)
    np.testing.assert_array_equal(got[exactly_known], expected[exactly_known])
    zeros = expected == 0
    np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(expected[zeros]))
    assert float(ulps(got, exact).max()) <= MAX_ULPS[name]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("exp_f32", 0.0, 1.0),
        ("exp_f32", -math.inf, 0.0),
        ("exp_f32", -103.98, 0.0),
        ("exp_f32", -103.9, float(SMALLEST_SUBNORMAL)),
        ("exp_f32", 88.8, math.inf),
        ("log_f32", 1.0, 0.0),
        ("log_f32", 0.0, -math.inf),
        ("log_f32", -0.0, -math.inf),
        ("log_f32", -1.0, math.nan),
        ("log_f32", -math.inf, math.nan),
        ("log_f32", math.inf, math.inf),
        ("sin_f32", math.inf, math.nan),
        ("cos_f32", -math.inf, math.nan),
        ("cos_f32", 0.0, 1.0),
        ("acos_f32", 1.0, 0.0),
        ("acos_f32", 1.1, math.nan),
        ("acos_f32", -math.inf, math.nan),
        ("sqrt", -1.0, math.nan),
        ("sqrt", math.inf, math.inf),
    ],
)
def test_named_values(name: str, value: float, expected: float) -> None:
    np.testing.assert_array_equal(run(name, [value]), np.array([expected], dtype=np.float32))


@pytest.mark.parametrize("name", REFERENCES)
def test_vector_body_and_scalar_remainder_give_the_same_bits(name: str) -> None:
    values = np.random.default_rng(7).uniform(-2.0, 40.0, 1001).astype(np.float32)
    together = run(name, values).view(np.uint32)
    one_by_one = np.concatenate([run(name, values[i : i + 1]) for i in range(values.size)]).view(np.uint32)
    every_third = run(name, values[::3]).view(np.uint32)
    both_nan = np.isnan(together.view(np.float32)) & np.isnan(one_by_one.view(np.float32))
    np.testing.assert_array_equal(np.where(both_nan, 0, together), np.where(both_nan, 0, one_by_one))
    np.testing.assert_array_equal(np.where(both_nan, 0, together)[::3], np.where(both_nan[::3], 0, every_third))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="looks for x86 instructions by name")
@pytest.mark.parametrize("name", REFERENCES)
def test_loops_become_packed_instructions(name: str) -> None:
    run(name, [0.5])
    assembly = "".join(element_loop(name).inspect_asm().values())
    packed = "sqrtps" if name == "sqrt" else "mulps"
    assert re.search(rf"v?{packed}\b", assembly)
    assert not re.search(r"call\w*\s+.*(expf?|logf?|sinf?|cosf?|acosf?|sqrtf?)\b", assembly)


def test_sqrt_of_float64_is_exact() -> None:
    values = np.array([2.0, 1e-310, 1e300, 0.0, math.inf])
    assert [maths.sqrt(float(value)) for value in values] == np.sqrt(values).tolist()


@pytest.mark.parametrize(
    ("name", "reference_function"),
    [
        ("exp_f64", np.exp),
        ("log_f64", np.log),
        ("sin_f64", np.sin),
        ("cos_f64", np.cos),
        ("acos_f64", np.arccos),
        ("tanh_f64", np.tanh),
        ("erf_f64", np.vectorize(math.erf)),
    ],
)
def test_float64_functions(name: str, reference_function: Callable[[Any], Any]) -> None:
    values = np.array([0.0, 0.25, -0.75, 1.0, 1.5, -1000.0, 1000.0, math.inf, math.nan])
    with np.errstate(all="ignore"):
        expected = reference_function(values)
    got = [getattr(maths, name)(float(value)) for value in values]
    np.testing.assert_allclose(got, expected, rtol=4e-16, atol=0)


@pytest.mark.parametrize("name", ["exp_f32", "log_f32", "sin_f32", "cos_f32", "acos_f32", "tanh_f32", "erf_f32"])
def test_float32_functions_refuse_float64(name: str) -> None:
    with pytest.raises(TypingError):
        getattr(maths, name)(0.5)


def test_rounding_and_bit_intrinsics() -> None:
    def probe(value: Any) -> Any:
        return (
            scalars.rint(value),
            scalars.floor(value),
            scalars.fabs(value),
            scalars.bits_from_f32(value),
            scalars.f32_from_bits(maths.bits_from_f32(value)),
        )

    assert njit(probe)(np.float32(-2.5)) == (-2.0, -3.0, 2.5, -0x3FE00000, -2.5)
