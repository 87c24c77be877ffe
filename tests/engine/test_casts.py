"""Casts between all dtypes: every bit pattern of the small types, rounding once to nearest even, clipping, wrapping."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings

import lbrx
from lbrx.tensors.dtype import DTYPES
from support.strategies import (
    FLOATS,
    INTEGERS,
    PACKED,
    assert_same,
    float_limits,
    numpy_type,
    special_values,
    values,
    widened,
)

HALVES = ("f16", "bf16", "f8_e4m3", "f8_e5m2")
NAMES = tuple(DTYPES)


def nearest_even(exact: Fraction, name: str) -> float:
    """The number of a half type nearest to an exact one; halves between two go to the even one."""
    info = float_limits(name)
    magnitude = abs(exact)
    if magnitude == 0:
        return 0.0
    exponent = max(_floor_log2(magnitude), int(info.minexp))
    step = Fraction(2) ** (exponent - int(info.nmant))
    rounded = round(magnitude / step) * step  # Fraction rounds halves to even
    if rounded > Fraction(float(info.max)):
        return float("nan") if name == "f8_e4m3" else float("inf") * (1 if exact > 0 else -1)
    return float(rounded) * (1 if exact > 0 else -1)


def _floor_log2(number: Fraction) -> int:
    power = number.numerator.bit_length() - number.denominator.bit_length()
    return power if number >= Fraction(2) ** power else power - 1


def integer_of(number: float, name: str) -> int:
    bits = DTYPES[name].bits
    low, high = (0, 2**bits - 1) if name == "u8" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if np.isnan(number):
        return 0
    return low if number <= low else high if number >= high else int(number)


def wrapped(number: int, name: str) -> int:
    bits = DTYPES[name].bits
    code = number % (1 << bits)
    return code if name == "u8" or code < 1 << (bits - 1) else code - (1 << bits)


def expected(array: Any, source: str, target: str) -> Any:
    """The cast by rules written out: exact numbers rounded once, clipped or wrapped."""
    wide = widened(array)
    numpy_dtype = numpy_type(target)
    with np.errstate(all="ignore"):
        if target == "bool":
            return wide != 0
        if target in HALVES and source in ("i64", "i32"):
            return np.array([nearest_even(Fraction(number), target) for number in wide.tolist()]).astype(numpy_dtype)
        if target in HALVES and source == "f64":
            return rounded_once(wide, target)
        if target in FLOATS:
            return wide.astype(numpy_dtype)
        if source in FLOATS:
            integers = [integer_of(float(number), target) for number in wide.tolist()]
            return np.array(integers, np.int64).astype(numpy_dtype)
        return np.array([wrapped(int(number), target) for number in wide.tolist()], np.int64).astype(numpy_dtype)


def rounded_once(wide: Any, target: str) -> Any:
    finite = np.isfinite(wide)
    numbers = [nearest_even(Fraction(number), target) for number in np.where(finite, wide, 0.0).tolist()]
    special = np.where(finite, 0.0, wide).astype(np.float32).astype(numpy_type(target))
    signed = np.copysign(np.array(numbers), wide).astype(np.float32).astype(numpy_type(target))
    return np.where(finite, signed, special)


def cast_to_all(array: Any) -> list[Any]:
    """The values cast to every dtype, in one pass; packed dtypes unpacked again to int8."""
    x = lbrx.tensor(array)
    targets = [x.to(name) for name in NAMES]
    wide = [target.to("i8") if target.dtype.is_packed else target for target in targets]
    return [
        result.astype(numpy_type(name)) if name in PACKED else result
        for name, result in zip(NAMES, lbrx.evaluate(*wide), strict=True)
    ]


def every_bit_pattern(name: str) -> Any:
    bits = DTYPES[name].bits
    if bits < 8:
        return np.arange(-(2 ** (bits - 1)), 2 ** (bits - 1), dtype=np.int8).astype(numpy_type(name))
    carrier = np.uint16 if bits == 16 else np.uint8
    return np.arange(2**bits, dtype=np.uint32).astype(carrier).view(numpy_type(name))


def sample(name: str) -> Any:
    if name == "bool":
        return np.array([False, True])
    if DTYPES[name].bits <= 8:
        return every_bit_pattern(name)
    if DTYPES[name].bits == 16:
        return every_bit_pattern(name)[::7]
    random = np.random.default_rng(5)
    numpy_dtype = numpy_type(name)
    any_bits = random.integers(0, 256, (400, numpy_dtype.itemsize), np.uint8).view(numpy_dtype).reshape(-1)
    if name in INTEGERS:
        return np.concatenate([special_values(name), any_bits, np.arange(-300, 70_000, 97).astype(numpy_dtype)])
    everyday = (random.standard_normal(600) * np.exp2(random.integers(-20, 20, 600))).astype(numpy_dtype)
    return np.concatenate([special_values(name), any_bits, everyday, near_ties(numpy_dtype)])


def near_ties(numpy_dtype: np.dtype[Any]) -> Any:
    """Numbers at, just below and just above the middle of two neighbours of each half type."""
    numbers = []
    for name in HALVES:
        info = float_limits(name)
        half_step = float(info.eps) / 2
        for start in (1.0, 1.0 + float(info.eps), float(info.max) * 0.5, float(info.tiny), float(info.max)):
            middle = numpy_dtype.type(start * (1 + half_step))
            numbers += [
                middle,
                np.nextafter(middle, numpy_dtype.type(0)),
                np.nextafter(middle, numpy_dtype.type(np.inf)),
            ]
        subnormal = numpy_dtype.type(float(info.smallest_subnormal) * 1.5)
        numbers += [
            subnormal,
            np.nextafter(subnormal, numpy_dtype.type(0)),
            numpy_dtype.type(float(info.smallest_subnormal) / 2),
        ]
    return np.array([*numbers, *(-number for number in numbers)], numpy_dtype)


@pytest.mark.parametrize("source", NAMES)
def test_all_pairs_of_dtypes(source: str) -> None:
    array = sample(source)
    for target, got in zip(NAMES, cast_to_all(array), strict=True):
        want = array if target == source else expected(array, source, target)
        assert_same(got, want, signed_zeros=target in FLOATS and source in FLOATS)


@pytest.mark.parametrize("name", HALVES)
@settings(deadline=None, max_examples=60)
@given(array=values("f32", 30))
def test_f32_to_half_types_is_what_ml_dtypes_does(name: str, array: Any) -> None:
    with np.errstate(all="ignore"):
        assert_same(lbrx.tensor(array).to(name).numpy(), array.astype(numpy_type(name)), signed_zeros=True)


@pytest.mark.parametrize("name", HALVES)
@settings(deadline=None, max_examples=60)
@given(array=values("f64", 30))
def test_f64_to_half_types_is_rounded_once(name: str, array: Any) -> None:
    with np.errstate(all="ignore"):
        assert_same(lbrx.tensor(array).to(name).numpy(), rounded_once(array, name), signed_zeros=True)


@pytest.mark.parametrize("name", HALVES)
def test_half_types_survive_a_round_trip_through_f32(name: str) -> None:
    array = every_bit_pattern(name)
    back = lbrx.tensor(array).to("f32").realize().to(name).numpy()
    assert_same(back, array, signed_zeros=True)


def test_a_cast_in_the_middle_of_an_expression_rounds() -> None:
    array = np.array([1.0, 1.001, 3.14159, 65504.0, 1e-8], np.float32)
    x = lbrx.tensor(array)
    for name in HALVES:
        with np.errstate(all="ignore"):
            want = array.astype(numpy_type(name)).astype(np.float32) * np.float32(3)
        assert_same((x.to(name) * 3).numpy(), want)


@pytest.mark.parametrize("target", NAMES)
def test_values_without_axes_are_cast_alike(target: str) -> None:
    numbers = {
        "f64": [1 + 2**-8 + 2**-40, 1 + 2**-11 + 2**-40, -1e300, 1e-300, np.nan, -3.99, 300.0, 0.0],
        "f32": [0.1, -1e30, np.inf, 449.0],
        "i64": [2**62 + 2**54 + 1, -(2**62) - 2**54 - 1, 300, -1],
        "i32": [2**30 + 2**22 + 1, 7],
        "bool": [True, False],
    }
    for source, found in numbers.items():
        array = np.array(found, numpy_type(source))
        want = array if target == source else expected(array, source, target)
        for place, number in enumerate(array):
            got = lbrx.tensor(np.asarray(number)).to(target).numpy()
            assert_same(got, want[place])


@settings(deadline=None, max_examples=40)
@given(array=values("i64", 30))
def test_i64_to_bf16_is_rounded_once(array: Any) -> None:
    want = np.array([nearest_even(Fraction(number), "bf16") for number in array.tolist()])
    assert_same(lbrx.tensor(array).to("bf16").numpy(), want.astype(np.float32).astype(ml_dtypes.bfloat16))


def test_a_cast_to_the_same_dtype_is_the_same_expression() -> None:
    x = lbrx.tensor(np.ones(3, np.float32))
    assert x.to("f32").expr is x.expr


@pytest.mark.parametrize("name", PACKED)
def test_packed_dtypes_take_less_than_a_byte_and_keep_their_values(name: str) -> None:
    array = np.tile(every_bit_pattern(name), 5)[:-1]  # not a whole number of bytes
    x = lbrx.tensor(array)
    assert x.nbytes == -(-array.size * DTYPES[name].bits // 8)
    assert x.storage is not None
    assert x.storage.nbytes == x.nbytes
    assert_same(x.numpy(), array)
    assert_same(x[3:-2:2].numpy(), array[3:-2:2])
    assert_same(x[5].numpy(), array[5])
    assert_same((x + x).numpy(), array.astype(np.int8) + array.astype(np.int8))
