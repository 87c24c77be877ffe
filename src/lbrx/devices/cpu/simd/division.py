"""Powers, floor division and remainders with the results of NumPy.

Division by zero gives 0 for integers. A negative power of an integer is rounded toward zero.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lbrx.devices.cpu.simd.instruction import jit


@jit
def pow_f64(x: Any, exponent: Any) -> Any:
    """A float64 to a power.

    >>> pow_f64(2.0, 0.5), pow_f64(-8.0, 3.0)
    (1.4142135623730951, -512.0)
    """
    return math.pow(x, exponent)


@jit
def pow_f32(x: Any, exponent: Any) -> Any:
    """A float32 to a power, rounded once.

    >>> pow_f32(np.float32(2.0), np.float32(0.5))
    1.4142135381698608
    """
    return np.float32(math.pow(np.float64(x), np.float64(exponent)))


@jit
def pow_i64(x: Any, exponent: Any) -> Any:
    """An integer to a power; results wrap.

    >>> pow_i64(-3, 3), pow_i64(2, 64), pow_i64(2, -1), pow_i64(-1, -3)
    (-27, 0, 0, -1)
    """
    if exponent < 0:
        sign = -1 if exponent & 1 else 1
        return np.int64(1) if x == 1 else np.int64(sign) if x == -1 else np.int64(0)
    result, factor, left = np.int64(1), np.int64(x), np.int64(exponent)
    while left > 0:
        if left & 1:
            result = np.int64(result * factor)
        factor = np.int64(factor * factor)
        left >>= 1
    return result


@jit
def floordiv_i64(x: Any, y: Any) -> Any:
    """A quotient rounded down; 0 if the divisor is 0.

    >>> floordiv_i64(-7, 2), floordiv_i64(7, 0), floordiv_i64(-(2**63), -1) == -(2**63)
    (-4, 0, True)
    """
    if y == 0:
        return np.int64(0)
    return np.int64(-x) if y == -1 else np.int64(x // y)


@jit
def mod_i64(x: Any, y: Any) -> Any:
    """The remainder with the sign of the divisor; 0 if the divisor is 0.

    >>> mod_i64(-7, 2), mod_i64(7, -2), mod_i64(7, 0)
    (1, -1, 0)
    """
    return np.int64(0) if y == 0 or y == -1 else np.int64(x % y)


@jit
def mod_float(x: Any, y: Any) -> Any:
    """The remainder with the sign of the divisor; NaN if the divisor is 0.

    >>> mod_float(-7.5, 2.0), mod_float(1.0, -np.inf)
    (0.5, -inf)
    """
    rest = np.fmod(x, y)
    if rest != 0:
        return rest + y if (y < 0) != (rest < 0) else rest
    return math.copysign(rest, y)


def _make_floordiv(one: Any) -> Any:
    """Floor division of the floats that ``one`` belongs to."""

    @jit
    def floordiv(x: Any, y: Any) -> Any:
        if y == 0:
            return x / y
        rest = np.fmod(x, y)
        quotient = (x - rest) / y
        if rest != 0 and (y < 0) != (rest < 0):
            quotient -= one
        if quotient == 0:
            return math.copysign(quotient, x / y)
        whole = np.floor(quotient)
        return whole + one if quotient - whole > 0.5 else whole

    return floordiv


DIVISION_FUNCTIONS: dict[str, Any] = {
    "pow_f64": pow_f64,
    "pow_f32": pow_f32,
    "pow_i64": pow_i64,
    "floordiv_i64": floordiv_i64,
    "floordiv_f32": _make_floordiv(np.float32(1)),
    "floordiv_f64": _make_floordiv(np.float64(1)),
    "mod_i64": mod_i64,
    "mod_f32": mod_float,
    "mod_f64": mod_float,
}
