"""Python's operators on tensors and numbers, on either side, against NumPy."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lbrx
from lbrx.errors import DTypeError

VALUES = np.array([-7.5, -1.0, 0.25, 3.0, 8.0], np.float32)
MASK = np.array([True, False, True, True, False])
OPERATORS = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.floordiv,
    operator.mod,
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
    operator.eq,
    operator.ne,
]


@pytest.mark.parametrize("apply", OPERATORS, ids=lambda apply: apply.__name__)
def test_arithmetic_and_comparisons(apply: Callable[[Any, Any], Any]) -> None:
    other = VALUES[::-1].copy()
    given = lbrx.tensor(VALUES)
    for found, expected in (
        (apply(given, lbrx.tensor(other)), apply(VALUES, other)),
        (apply(given, 3.0), apply(VALUES, np.float32(3.0))),
        (apply(3.0, given), apply(np.float32(3.0), VALUES)),
    ):
        np.testing.assert_array_equal(found.numpy(), expected)


@pytest.mark.parametrize("apply", [operator.and_, operator.or_, operator.xor], ids=lambda apply: apply.__name__)
def test_logic(apply: Callable[[Any, Any], Any]) -> None:
    given, other = lbrx.tensor(MASK), np.array([True, True, False, True, False])
    np.testing.assert_array_equal(apply(given, lbrx.tensor(other)).numpy(), apply(MASK, other))
    for value in (True, False):
        np.testing.assert_array_equal(apply(given, value).numpy(), apply(MASK, value))
        np.testing.assert_array_equal(apply(value, given).numpy(), apply(value, MASK))


def test_powers() -> None:
    given = lbrx.tensor(np.abs(VALUES))
    for exponent in (2, 0.5, 3, -1.0):
        np.testing.assert_allclose((given**exponent).numpy(), np.abs(VALUES) ** exponent, rtol=1e-6)
    np.testing.assert_allclose((2.0**given).numpy(), 2.0 ** np.abs(VALUES), rtol=1e-6)
    with pytest.raises(DTypeError, match="cannot raise integers to the power -1; cast the tensor"):
        lbrx.tensor(np.array([1, 2])) ** -1


def test_signs_and_inversion() -> None:
    given = lbrx.tensor(VALUES)
    assert +given is given
    np.testing.assert_array_equal((-given).numpy(), -VALUES)
    np.testing.assert_array_equal(abs(given).numpy(), np.abs(VALUES))
    np.testing.assert_array_equal((~lbrx.tensor(MASK)).numpy(), ~MASK)


@pytest.mark.parametrize("name", ["tanh", "erf"])
def test_functions(name: str) -> None:
    found = getattr(lbrx.tensor(VALUES), name)().numpy()
    np.testing.assert_allclose(found, [getattr(math, name)(value) for value in VALUES.tolist()], rtol=1e-6)


def test_products_with_arrays_on_the_left() -> None:
    left, right = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(lbrx.tensor(right).__rmatmul__(left).numpy(), left @ right)


def test_arrays_of_a_tensor() -> None:
    given = lbrx.tensor(VALUES)
    assert given.__dlpack_device__() == (1, 0)
    wide = given.__array__(np.float64)
    assert wide.dtype == np.float64
    np.testing.assert_array_equal(wide, VALUES)
    own = given.__array__(copy=True)
    own[0] = 0
    assert given.numpy()[0] == VALUES[0]
    with pytest.raises(DTypeError, match="f32 tensor cannot be viewed as float64 without a copy"):
        given.__array__(np.float64, copy=False)
