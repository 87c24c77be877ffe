"""Random numbers as a pure function of a key and an element's index.

Nothing is drawn in sequence: element ``i`` of a stream is ``uniform_f32(key0, key1, i)`` on every device and
under every schedule. All arithmetic is uint32 with wrap-around and low halves of products, which AVX2, NEON and
GPUs have in every lane; the functions vectorise inside a Numba loop.

The low word of the index goes through four rounds of ``x = (x ^ x >> shift) * odd + key``, and the state after
two of them is added to the outcome, so that words repeat as often as independent ones do. The high word of the
index goes into the key of the first round. Each bit of index and keys flips every output bit with probability
1/2, and streams of neighbouring keys show no relation; two or three rounds leave visible bias, and seven rounds
of Philox-2x32 cost five times as much. This is for sampling, not for secrets.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.simd.instruction import inlined
from lbrx.devices.cpu.simd.maths import log_f32, sqrt
from lbrx.tensors.random_keys import stream_key

__all__ = ["normal_f32", "random_word", "stream_key", "uniform_f32"]

# Odd multipliers and shifts of low bias, from the published searches of the hash-prospector project.
_MULTIPLIER_1 = np.uint32(0x7FEB352D)
_MULTIPLIER_2 = np.uint32(0x846CA68B)
_MULTIPLIER_3 = np.uint32(0xED5AD4BB)
_MULTIPLIER_4 = np.uint32(0xAC4C1B51)
_SHIFT_1 = np.uint32(16)
_SHIFT_2 = np.uint32(15)
_SHIFT_3 = np.uint32(17)
_SHIFT_4 = np.uint32(11)
# 2**32 / golden ratio spreads the high word of an index; the increment keeps the keys (0, 0) from mapping 0 to 0.
_HIGH_WORD_MULTIPLIER = np.uint32(0x9E3779B9)
_KEY_INCREMENT = np.uint32(0xB7E15162)

_UNIFORM_SHIFT = np.uint32(8)
_UNIFORM_STEP = np.float32(2.0**-24)


@inlined
def _round(x: Any, shift: Any, multiplier: Any, key: Any) -> Any:
    # Numba widens uint32 arithmetic to 64 bits: every step goes back to uint32, which LLVM then keeps narrow.
    return np.uint32(np.uint32(np.uint32(x ^ np.uint32(x >> shift)) * multiplier) + key)


@inlined
def _scramble(x: Any) -> Any:
    x = _round(x, _SHIFT_1, _MULTIPLIER_1, np.uint32(0))
    x = _round(x, _SHIFT_2, _MULTIPLIER_2, np.uint32(0))
    return np.uint32(x ^ np.uint32(x >> _SHIFT_1))


@inlined
def random_word(key0: Any, key1: Any, index: Any) -> Any:
    """32 random bits as uint32 for an index from 0 to 2**40 (any int64 is accepted).

    In a loop the keys should be scalars that do not change: what depends on them alone is then computed once.

    >>> hex(random_word(1, 2, 3))
    '0x7d92b645'
    """
    first_key = np.uint32(key0)
    second_key = np.uint32(np.uint32(key1) + _KEY_INCREMENT)
    # Without a third key, neighbouring first keys would give the same values in another order.
    third_key = _scramble(np.uint32(first_key + _scramble(second_key)))
    high_word = np.uint32(np.int64(index) >> np.int64(32))
    block_key = np.uint32(second_key + np.uint32(high_word * _HIGH_WORD_MULTIPLIER))
    x = np.uint32(np.uint32(index) ^ first_key)
    x = _round(x, _SHIFT_1, _MULTIPLIER_1, block_key)
    halfway = _round(x, _SHIFT_2, _MULTIPLIER_2, third_key)
    x = _round(halfway, _SHIFT_3, _MULTIPLIER_3, np.uint32(0))
    x = _round(x, _SHIFT_4, _MULTIPLIER_4, np.uint32(0))
    return np.uint32(np.uint32(x ^ np.uint32(x >> _SHIFT_2)) + halfway)


@inlined
def uniform_f32(key0: Any, key1: Any, index: Any) -> Any:
    """A float32 in [0, 1) with 24 random bits: the multiples of 2**-24 are equally likely.

    >>> uniform_f32(*stream_key(42, "lm_head.weight"), 0)
    0.7657882571220398
    """
    # The conversion goes through int32 because only the signed one is a single packed instruction.
    return np.float32(np.int32(random_word(key0, key1, index) >> _UNIFORM_SHIFT)) * _UNIFORM_STEP


_ZERO = np.float32(0.0)
_HALF = np.float32(0.5)
_ONE = np.float32(1.0)
_TWO = np.float32(2.0)
_FOUR = np.float32(4.0)
_MAGNITUDE_MASK = np.uint32(0x7FFFFFFF)
_TAIL_STEP = np.float32(2.0**-32)

# The normal quantile of tail t is (1 - 2t) * Q(w) with w = -log(4 t (1 - t)).
# Q(w) is a polynomial in w - 3 for w <= 6 and in sqrt(w) - 3.25 up to t = 2**-33, both within 4e-7.
_SPLIT = np.float32(6.0)
_NEAR_CENTRE = np.float32(3.0)
_NEAR_0 = np.float32(2.2960355281829834)
_NEAR_1 = np.float32(0.34171873331069946)
_NEAR_2 = np.float32(-0.008116877637803555)
_NEAR_3 = np.float32(-0.0011851962190121412)
_NEAR_4 = np.float32(0.0002771338913589716)
_NEAR_5 = np.float32(-1.6906114979065023e-05)
_NEAR_6 = np.float32(-2.7826358746096957e-06)
_NEAR_7 = np.float32(4.76260936466133e-07)
_FAR_CENTRE = np.float32(3.25)
_FAR_0 = np.float32(4.361273288726807)
_FAR_1 = np.float32(1.4216465950012207)
_FAR_2 = np.float32(0.0075780428014695644)
_FAR_3 = np.float32(-0.005257077515125275)
_FAR_4 = np.float32(0.0036059441044926643)
_FAR_5 = np.float32(-0.002555048791691661)
_FAR_6 = np.float32(0.0012561162002384663)
_FAR_7 = np.float32(-0.0002709503751248121)


@inlined
def _upper_quantile(tail: Any) -> Any:
    """The z >= 0 that a standard normal exceeds with probability ``tail``, for 2**-33 <= tail <= 1/2."""
    # Polynomials by halves rather than by Horner's rule, whose chain of dependent steps sets the pace here.
    w = -log_f32(_FOUR * tail * (_ONE - tail))
    w = w if w > _ZERO else _ZERO
    a = w - _NEAR_CENTRE
    a2 = a * a
    near_low = (_NEAR_3 * a + _NEAR_2) * a2 + (_NEAR_1 * a + _NEAR_0)
    near_high = (_NEAR_7 * a + _NEAR_6) * a2 + (_NEAR_5 * a + _NEAR_4)
    near = near_high * (a2 * a2) + near_low
    b = sqrt(w) - _FAR_CENTRE
    b2 = b * b
    far_low = (_FAR_3 * b + _FAR_2) * b2 + (_FAR_1 * b + _FAR_0)
    far_high = (_FAR_7 * b + _FAR_6) * b2 + (_FAR_5 * b + _FAR_4)
    far = far_high * (b2 * b2) + far_low
    return (_ONE - _TWO * tail) * (near if w <= _SPLIT else far)


@inlined
def normal_f32(key0: Any, key1: Any, index: Any) -> Any:
    """A standard normal float32, at most 6.3 from zero.

    It is the quantile of the same 32 bits that ``uniform_f32`` takes its 24 from: streams that must be
    independent need different names in ``stream_key``.

    >>> round(normal_f32(*stream_key(42, "noise"), 0), 4)
    1.5196
    """
    word = random_word(key0, key1, index)
    magnitude = np.float32(np.int32(word & _MAGNITUDE_MASK))
    z = _upper_quantile((magnitude + _HALF) * _TAIL_STEP)
    return z if word > _MAGNITUDE_MASK else -z
