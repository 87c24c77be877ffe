"""Elementary functions that stay vector code inside a Numba loop.

``math.exp`` and its kin become one call of the C library per element, and a loop with a call in it is not
vectorised. The ``*_f32`` functions here are straight lines of multiplications, additions, bit operations and
selects, which LLVM turns into packed instructions. They are at most 2 units in the last place away from the
true value over all of float32, subnormal numbers included, and treat zeros, infinities and NaN as NumPy does.
Nothing is reordered, and contracted only where it says so, so a result depends neither on the vector width nor on the
machine.

The ``*_f64`` functions call the C library.

Polynomials are near-minimax fits on the reduced range that each function names. Constants are ``np.float32``
because Numba computes ``float32 * 0.5`` in float64.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lbrx.devices.cpu.simd.instruction import inlined
from lbrx.devices.cpu.simd.scalars import bits_from_f32, f32_from_bits, fused, rint, square_root


@inlined
def sqrt(x: Any) -> Any:
    """The correctly rounded square root of a float32 or a float64, NaN below zero.

    >>> sqrt(np.float32(6.25)), sqrt(-1.0)
    (2.5, nan)
    """
    return square_root(x)


_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)
_TWO = np.float32(2.0)
_HALF = np.float32(0.5)
_NAN = np.float32(math.nan)
_INFINITY = np.float32(math.inf)
_SIGN_BIT = np.int32(-(2**31))
_MAGNITUDE_BITS = np.int32(2**31 - 1)
_MANTISSA_BITS = np.int32(23)
_EXPONENT_BIAS = np.int32(127)


@inlined
def _magnitude_f32(x: Any) -> Any:
    # Through the bits rather than by `fabs`, so that float64 is refused.
    return f32_from_bits(np.int32(bits_from_f32(x) & _MAGNITUDE_BITS))


# Adding 1.5 * 2**23 to a small float32 leaves its nearest integer in the low bits of the sum.
_ROUNDER = np.float32(12582912.0)
_ROUNDER_BITS = np.int32(0x4B400000)

# ln 2 in two parts; the first has 15 significant bits, so that its product with an exponent is exact.
_LN2_HIGH = np.float32(0.693145751953125)
_LN2_LOW = np.float32(1.4286068203094172e-06)

# exp(r) = 1 + r + r**2 * P(r) for |r| <= ln(2) / 2
_LOG2_E = np.float32(1.4426950408889634)
_EXP_ALL_ZERO_BELOW = np.float32(-104.0)
_EXP_INFINITE_ABOVE = np.float32(89.0)
_EXP_0 = np.float32(0.4999999403953552)
_EXP_1 = np.float32(0.1666652113199234)
_EXP_2 = np.float32(0.04166838899254799)
_EXP_3 = np.float32(0.0083687175065279)
_EXP_4 = np.float32(0.0013814596459269524)


@inlined
def exp_f32(x: Any) -> Any:
    """e to the power of a float32.

    >>> exp_f32(np.float32(1.0)), exp_f32(np.float32(-np.inf))
    (2.7182817459106445, 0.0)
    """
    bounded = _EXP_ALL_ZERO_BELOW if x < _EXP_ALL_ZERO_BELOW else x
    bounded = _EXP_INFINITE_ABOVE if bounded > _EXP_INFINITE_ABOVE else bounded
    shifted = fused(bounded, _LOG2_E, _ROUNDER)
    exponent = np.int32(bits_from_f32(shifted) - _ROUNDER_BITS)
    whole = shifted - _ROUNDER
    r = fused(whole, -_LN2_LOW, fused(whole, -_LN2_HIGH, bounded))
    square = r * r
    # By halves rather than by Horner's rule, whose chain of dependent steps would set the pace.
    tail = fused(fused(_EXP_4, r, _EXP_3), square, fused(_EXP_2, r, _EXP_1))
    mantissa = fused(fused(tail, r, _EXP_0), square, r) + _ONE
    # 2**exponent lies outside float32 at both ends of the range; each of two halves lies inside.
    first = np.int32(exponent >> np.int32(1))
    second = np.int32(exponent - first)
    return mantissa * _power_of_two(first) * _power_of_two(second)


@inlined
def _power_of_two(exponent: Any) -> Any:
    return f32_from_bits(np.int32(np.int32(exponent + _EXPONENT_BIAS) << _MANTISSA_BITS))


# log(1 + f) = f - f**2 / 2 + f**3 * P(f) for 1 + f in [sqrt(1/2), sqrt(2))
_SMALLEST_NORMAL = np.float32(2.0**-126)
_SUBNORMAL_SCALE = np.float32(2.0**23)
_SQRT_HALF_BITS = np.int32(0x3F3504F3)
_MANTISSA_MASK = np.int32(0x007FFFFF)
_LOG_0 = np.float32(0.3333331346511841)
_LOG_1 = np.float32(-0.25000008940696716)
_LOG_2 = np.float32(0.2000211924314499)
_LOG_3 = np.float32(-0.1666799634695053)
_LOG_4 = np.float32(0.14219550788402557)
_LOG_5 = np.float32(-0.12405591458082199)
_LOG_6 = np.float32(0.11888174712657928)
_LOG_7 = np.float32(-0.11675640940666199)
_LOG_8 = np.float32(0.06746601313352585)


@inlined
def log_f32(x: Any) -> Any:
    """The natural logarithm of a float32: minus infinity at zero, NaN below.

    >>> log_f32(np.float32(2.0)), log_f32(np.float32(0.0)), log_f32(np.float32(-1.0))
    (0.6931471824645996, -inf, nan)
    """
    is_subnormal = x < _SMALLEST_NORMAL
    normal = x * _SUBNORMAL_SCALE if is_subnormal else x
    above_sqrt_half = np.int32(bits_from_f32(normal) - _SQRT_HALF_BITS)
    exponent = np.int32(above_sqrt_half >> _MANTISSA_BITS)
    exponent = np.int32(exponent - _MANTISSA_BITS) if is_subnormal else exponent
    f = f32_from_bits(np.int32(np.int32(above_sqrt_half & _MANTISSA_MASK) + _SQRT_HALF_BITS)) - _ONE
    square = f * f
    low = fused(fused(_LOG_3, f, _LOG_2), square, fused(_LOG_1, f, _LOG_0))
    high = fused(fused(_LOG_7, f, _LOG_6), square, fused(_LOG_5, f, _LOG_4))
    fourth = square * square
    tail = fused(fused(_LOG_8, fourth, high), fourth, low)
    scale = np.float32(exponent)
    small = fused(-_HALF, square, fused(tail, square * f, scale * _LN2_LOW))
    finite = fused(scale, _LN2_HIGH, f + small)
    # NaN fails every comparison and so ends in the last line's NaN.
    bounded = finite if x < _INFINITY else x
    positive = bounded if x > _ZERO else -_INFINITY
    return positive if x >= _ZERO else _NAN


# sin(r) = r + r**3 * P(r**2) and cos(r) = 1 - r**2 / 2 + r**4 * P(r**2) for |r| <= pi / 4
_SIN_0 = np.float32(-0.16666655242443085)
_SIN_1 = np.float32(0.008332177996635437)
_SIN_2 = np.float32(-0.00019517265900503844)
_COS_0 = np.float32(0.04166664555668831)
_COS_1 = np.float32(-0.001388736767694354)
_COS_2 = np.float32(2.443841367494315e-05)

# Windows into the bits of 1 / (2 pi), each of 29 + 29 + 53 bits: a float32 (24 bits) times either of the first
# two parts is exact in float64. An argument of 2**e needs no bit above 2**(23 - e), whose products are whole
# turns, and none far below 2**(-60 - e); so each window serves the arguments up to its limit.
_WINDOW_0_LIMIT = np.float32(2.0**50)
_WINDOW_1_LIMIT = np.float32(2.0**78)
_WINDOW_2_LIMIT = np.float32(2.0**106)
_TURN_0_HIGH = float.fromhex("0x1.45f306d000000p-3")
_TURN_0_MIDDLE = float.fromhex("0x1.9391054000000p-32")
_TURN_0_LOW = float.fromhex("0x1.4fe13abe8fa9ap-61")
_TURN_1_HIGH = float.fromhex("0x1.b939105000000p-28")
_TURN_1_MIDDLE = float.fromhex("0x1.29fc274000000p-58")
_TURN_1_LOW = float.fromhex("0x1.7d1f534ddc0dbp-86")
_TURN_2_HIGH = float.fromhex("0x1.4a7f09d000000p-56")
_TURN_2_MIDDLE = float.fromhex("0x1.7d1f534000000p-86")
_TURN_2_LOW = float.fromhex("0x1.bb81b6c52b326p-115")
_TURN_3_HIGH = float.fromhex("0x1.5f47d4d000000p-84")
_TURN_3_MIDDLE = float.fromhex("0x1.bb81b6c000000p-115")
_TURN_3_LOW = float.fromhex("0x1.4acc9e21c8208p-145")
_HALF_PI = math.pi / 2


@inlined
def _quarter_turns(magnitude: Any) -> Any:
    """Splits |x| into the nearest count of quarter turns (modulo 4, as int32) and the rest in radians."""
    high = _TURN_0_HIGH if magnitude < _WINDOW_0_LIMIT else _TURN_1_HIGH
    high = high if magnitude < _WINDOW_1_LIMIT else _TURN_2_HIGH
    high = high if magnitude < _WINDOW_2_LIMIT else _TURN_3_HIGH
    middle = _TURN_0_MIDDLE if magnitude < _WINDOW_0_LIMIT else _TURN_1_MIDDLE
    middle = middle if magnitude < _WINDOW_1_LIMIT else _TURN_2_MIDDLE
    middle = middle if magnitude < _WINDOW_2_LIMIT else _TURN_3_MIDDLE
    low = _TURN_0_LOW if magnitude < _WINDOW_0_LIMIT else _TURN_1_LOW
    low = low if magnitude < _WINDOW_1_LIMIT else _TURN_2_LOW
    low = low if magnitude < _WINDOW_2_LIMIT else _TURN_3_LOW
    x = np.float64(magnitude)
    turns = x * high
    turns -= rint(turns)
    finer_turns = x * middle
    turns += finer_turns - rint(finer_turns)
    quarters = (turns + x * low) * 4.0
    nearest = rint(quarters)
    count = bits_from_f32(np.float32(nearest) + _ROUNDER)
    return count, np.float32((quarters - nearest) * _HALF_PI)


@inlined
def _sin_of_quarters(count: Any, r: Any) -> Any:
    """sin(count * pi / 2 + r)"""
    square = r * r
    sine = ((_SIN_2 * square + _SIN_1) * square + _SIN_0) * (square * r) + r
    cosine = ((_COS_2 * square + _COS_1) * square + _COS_0) * (square * square) - _HALF * square + _ONE
    value = cosine if np.int32(count & np.int32(1)) != np.int32(0) else sine
    sign = np.int32(np.int32(count & np.int32(2)) << np.int32(30))
    return f32_from_bits(np.int32(bits_from_f32(value) ^ sign))


@inlined
def sin_f32(x: Any) -> Any:
    """The sine of a float32 in radians, right for arguments of any size.

    >>> sin_f32(np.float32(0.5)), sin_f32(np.float32(1e30)), sin_f32(np.float32(np.inf))
    (0.4794255495071411, -0.791163444519043, nan)
    """
    count, r = _quarter_turns(_magnitude_f32(x))
    sign = np.int32(bits_from_f32(x) & _SIGN_BIT)
    return f32_from_bits(np.int32(bits_from_f32(_sin_of_quarters(count, r)) ^ sign))


@inlined
def cos_f32(x: Any) -> Any:
    """The cosine of a float32 in radians, right for arguments of any size.

    >>> cos_f32(np.float32(0.5)), cos_f32(np.float32(0.0))
    (0.8775825500488281, 1.0)
    """
    count, r = _quarter_turns(_magnitude_f32(x))
    return _sin_of_quarters(np.int32(count + np.int32(1)), r)


# asin(s) = s + s**3 * P(s**2) for s in [0, 1/2]; pi and pi / 2 in two parts each
_ASIN_0 = np.float32(0.16666659712791443)
_ASIN_1 = np.float32(0.07500510662794113)
_ASIN_2 = np.float32(0.04451572149991989)
_ASIN_3 = np.float32(0.03181760758161545)
_ASIN_4 = np.float32(0.014402614906430244)
_ASIN_5 = np.float32(0.037565186619758606)
_PI_HIGH = np.float32(math.pi)
_PI_LOW = np.float32(math.pi - float(_PI_HIGH))
_HALF_PI_HIGH = np.float32(math.pi / 2)
_HALF_PI_LOW = np.float32(math.pi / 2 - float(_HALF_PI_HIGH))


@inlined
def acos_f32(x: Any) -> Any:
    """The angle in [0, pi] whose cosine is a float32, NaN outside [-1, 1].

    >>> acos_f32(np.float32(1.0)), acos_f32(np.float32(-1.0)), acos_f32(np.float32(1.5))
    (0.0, 3.1415927410125732, nan)
    """
    # acos(x) = pi / 2 - asin(x), and for x > 1/2 also 2 * asin(sqrt((1 - x) / 2)), which loses no digits.
    magnitude = _magnitude_f32(x)
    is_large = magnitude > _HALF
    square = (_ONE - magnitude) * _HALF if is_large else x * x
    s = square_root(square) if is_large else magnitude
    tail = (((_ASIN_5 * square + _ASIN_4) * square + _ASIN_3) * square + _ASIN_2) * square + _ASIN_1
    tail = tail * square + _ASIN_0
    arcsine = tail * (square * s) + s
    double = _TWO * arcsine
    large = _PI_HIGH - (double - _PI_LOW) if x < _ZERO else double
    small = _HALF_PI_HIGH - ((-arcsine if x < _ZERO else arcsine) - _HALF_PI_LOW)
    return large if is_large else small


# tanh(x) = x + x**3 * P(x**2) for |x| <= 5/8
_TANH_0 = np.float32(-0.3333328366279602)
_TANH_1 = np.float32(0.13331490755081177)
_TANH_2 = np.float32(-0.05374349653720856)
_TANH_3 = np.float32(0.020650586113333702)
_TANH_4 = np.float32(-0.005717044696211815)
_TANH_SMALL = np.float32(0.625)


@inlined
def tanh_f32(x: Any) -> Any:
    """The hyperbolic tangent of a float32.

    >>> tanh_f32(np.float32(0.5)), tanh_f32(np.float32(-np.inf))
    (0.46211716532707214, -1.0)
    """
    magnitude = _magnitude_f32(x)
    square = x * x
    tail = (((_TANH_4 * square + _TANH_3) * square + _TANH_2) * square + _TANH_1) * square + _TANH_0
    small = tail * (square * magnitude) + magnitude
    large = _ONE - _TWO / (exp_f32(_TWO * magnitude) + _ONE)
    value = small if magnitude <= _TANH_SMALL else large
    return f32_from_bits(np.int32(bits_from_f32(value) | np.int32(bits_from_f32(x) & _SIGN_BIT)))


# erf(x) = x + x * P(x**2) for |x| <= 1, and 1 - exp(Q(x)) from there to 4, where it is 1
_ERF_0 = np.float32(0.12837916612625122)
_ERF_1 = np.float32(-0.3761262595653534)
_ERF_2 = np.float32(0.11283600330352783)
_ERF_3 = np.float32(-0.026854444295167923)
_ERF_4 = np.float32(0.005189535673707724)
_ERF_5 = np.float32(-0.0008020842215046287)
_ERF_6 = np.float32(7.889122935011983e-05)
_ERFC_0 = np.float32(0.0001880370546132326)
_ERFC_1 = np.float32(-1.1295783519744873)
_ERFC_2 = np.float32(-0.6332198977470398)
_ERFC_3 = np.float32(-0.1084185540676117)
_ERFC_4 = np.float32(0.025208240374922752)
_ERFC_5 = np.float32(-0.004204556345939636)
_ERFC_6 = np.float32(0.00044133528717793524)
_ERFC_7 = np.float32(-2.1686762920580804e-05)
_ERF_IS_ONE = np.float32(4.0)


@inlined
def erf_f32(x: Any) -> Any:
    """The error function of a float32.

    >>> erf_f32(np.float32(0.5)), erf_f32(np.float32(-np.inf))
    (0.5204998850822449, -1.0)
    """
    magnitude = _magnitude_f32(x)
    square = x * x
    tail = ((_ERF_6 * square + _ERF_5) * square + _ERF_4) * square + _ERF_3
    tail = ((tail * square + _ERF_2) * square + _ERF_1) * square + _ERF_0
    small = tail * magnitude + magnitude
    a = _ERF_IS_ONE if magnitude > _ERF_IS_ONE else magnitude
    logarithm = ((_ERFC_7 * a + _ERFC_6) * a + _ERFC_5) * a + _ERFC_4
    logarithm = (((logarithm * a + _ERFC_3) * a + _ERFC_2) * a + _ERFC_1) * a + _ERFC_0
    large = _ONE - exp_f32(logarithm)
    value = small if magnitude <= _ONE else large
    return f32_from_bits(np.int32(bits_from_f32(value) | np.int32(bits_from_f32(x) & _SIGN_BIT)))


@inlined
def tanh_f64(x: Any) -> Any:
    """The hyperbolic tangent of a float64.

    >>> round(tanh_f64(0.5), 12)
    0.46211715726
    """
    return math.tanh(x)


@inlined
def erf_f64(x: Any) -> Any:
    """The error function of a float64.

    >>> round(erf_f64(0.5), 12)
    0.520499877813
    """
    return math.erf(x)


@inlined
def exp_f64(x: Any) -> Any:
    """e to the power of a float64.

    >>> exp_f64(1.0), exp_f64(1e4)
    (2.718281828459045, inf)
    """
    return math.exp(x)


@inlined
def log_f64(x: Any) -> Any:
    """The natural logarithm of a float64: minus infinity at zero, NaN below.

    >>> log_f64(2.0), log_f64(0.0)
    (0.6931471805599453, -inf)
    """
    return math.log(x)


@inlined
def sin_f64(x: Any) -> Any:
    """The sine of a float64 in radians.

    >>> sin_f64(0.5)
    0.479425538604203
    """
    return math.sin(x)


@inlined
def cos_f64(x: Any) -> Any:
    """The cosine of a float64 in radians.

    >>> cos_f64(0.5)
    0.8775825618903728
    """
    return math.cos(x)


@inlined
def acos_f64(x: Any) -> Any:
    """The angle in [0, pi] whose cosine is a float64, NaN outside [-1, 1].

    >>> acos_f64(-1.0), acos_f64(1.5)
    (3.141592653589793, nan)
    """
    return math.acos(x)
