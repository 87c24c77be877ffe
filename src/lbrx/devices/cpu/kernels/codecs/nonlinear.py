"""What IQ4_NL and IQ4_XS share: codes of four bits for 16 values that stand closer together near zero."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from lbrx.devices.cpu.kernels.codecs.searches import ALL_ZERO
from lbrx.devices.cpu.simd.byte_codes import make_table
from lbrx.devices.cpu.simd.f32 import stairs
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.lanes import lane_extremes
from lbrx.devices.cpu.simd.vectors import load, mask_bits, select, splat, store, to_i32

VALUES = (-127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0)
_MIDDLES = tuple((low + high) / 2 for low, high in pairwise(VALUES))
_CODES = tuple(float(code) for code in range(16))

nearest_value = stairs(_MIDDLES, VALUES)
nearest_code = stairs(_MIDDLES, _CODES)
value_of_code = make_table([int(value) for value in VALUES])
LOWEST = np.float32(VALUES[0])
TRIES = 7


@jit
def _sums(like: Any, values: Any, weights: Any, factor: Any) -> Any:
    product_sum, square_sum = splat(like, 0.0), splat(like, 0.0)
    for i in range(32):
        value = load(like, values, i)
        level = nearest_value(factor * value)
        weighted = load(like, weights, i) * level
        product_sum = product_sum + weighted * value
        square_sum = square_sum + weighted * level
    return product_sum, square_sum


@jit
def fit_nonlinear_scale(like: Any, values: Any, weights: Any) -> Any:
    """The scales of blocks of 32; 0 for a block without values that count."""
    largest, extreme = lane_extremes(like, values, 32)
    zero = splat(like, 0.0)
    product_sum, square_sum = _sums(like, values, weights, splat(like, 1.0) / ((zero - extreme) / LOWEST))
    scale = select(square_sum > 0.0, product_sum / square_sum, zero)
    best = scale * product_sum
    for number in range(-TRIES, TRIES + 1):
        factor = splat(like, np.float32(number) + LOWEST) / extreme
        product_sum, square_sum = _sums(like, values, weights, factor)
        is_better = (square_sum > 0.0) & (product_sum * product_sum > best * square_sum)
        if mask_bits(is_better):
            scale = select(is_better, product_sum / square_sum, scale)
            best = select(is_better, scale * product_sum, best)
    return select(largest < ALL_ZERO, zero, scale)


@jit
def store_nonlinear_codes(like: Any, values: Any, codes: Any, scale: Any) -> None:
    """The codes nearest to value / scale as a tile of i32; a scale of 0 makes all of them that of 0."""
    factor = select(scale == 0.0, splat(like, 0.0), splat(like, 1.0) / scale)
    for i in range(32):
        store(codes, i, to_i32(nearest_code(factor * load(like, values, i))))


@jit
def decoded(codes: Any, scale: Any) -> Any:
    return value_of_code(codes) * scale
