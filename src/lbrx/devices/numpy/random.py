"""Random numbers from a key and an index: the functions of `lbrx.devices.cpu.kernels.random` over arrays."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
StreamKey = tuple[int, int]

_NEAR: Floats = np.array(
    [2.2960355, 0.34171873, -0.0081168776, -0.0011851962, 2.7713389e-4, -1.6906115e-5, -2.7826359e-6, 4.7626094e-7],
    np.float32,
)
_FAR: Floats = np.array(
    [4.3612733, 1.4216466, 0.0075780428, -0.0052570775, 0.0036059441, -0.0025550488, 0.0012561162, -2.7095038e-4],
    np.float32,
)


def _round(x: Words, shift: int, multiplier: int, key: Words | np.uint32) -> Words:
    return (x ^ (x >> np.uint32(shift))) * np.uint32(multiplier) + key


def _scramble(x: Words) -> Words:
    zero = np.uint32(0)
    x = _round(_round(x, 16, 0x7FEB352D, zero), 15, 0x846CA68B, zero)
    return x ^ (x >> np.uint32(16))


def random_words(key: StreamKey, index: Ints) -> Words:
    """32 random bits for each index.

    >>> hex(random_words((1, 2), np.array([3]))[0])
    '0x7d92b645'
    """
    low, high = index.astype(np.uint32), (index >> 32).astype(np.uint32)
    first_key, second_key = (np.array([word & 0xFFFFFFFF], np.uint32) for word in (key[0], key[1] + 0xB7E15162))
    third_key = _scramble(first_key + _scramble(second_key))
    x = _round(low ^ first_key, 16, 0x7FEB352D, second_key + high * np.uint32(0x9E3779B9))
    halfway = _round(x, 15, 0x846CA68B, third_key)
    zero = np.uint32(0)
    x = _round(_round(halfway, 17, 0xED5AD4BB, zero), 11, 0xAC4C1B51, zero)
    return (x ^ (x >> np.uint32(15))) + halfway


def uniform(key: StreamKey, index: Ints) -> Floats:
    """Multiples of 2**-24 in [0, 1)."""
    return (random_words(key, index) >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def normal(key: StreamKey, index: Ints) -> Floats:
    """The normal quantile of the same bits: of a tail t it is (1 - 2t) Q(-log(4 t (1 - t)))."""
    words = random_words(key, index)
    one, two, four = np.float32(1), np.float32(2), np.float32(4)
    magnitude = (words & np.uint32(0x7FFFFFFF)).astype(np.float32)
    tail = (magnitude + np.float32(0.5)) * np.float32(2.0**-32)
    w = np.maximum(-np.log((four * tail * (one - tail)).astype(np.float64)).astype(np.float32), np.float32(0))
    near = _polynomial(_NEAR, w - np.float32(3))
    far = _polynomial(_FAR, np.sqrt(w) - np.float32(3.25))
    z: Floats = (one - two * tail) * np.where(w <= 6, near, far)
    return np.where(words > 0x7FFFFFFF, z, -z)


def _polynomial(c: Floats, x: Floats) -> Floats:
    """A polynomial of degree 7, summed up by halves as the kernels do."""
    square = x * x
    low: Floats = (c[3] * x + c[2]) * square + (c[1] * x + c[0])
    high: Floats = (c[7] * x + c[6]) * square + (c[5] * x + c[4])
    return high * (square * square) + low
