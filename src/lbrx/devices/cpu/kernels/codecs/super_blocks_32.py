"""What Q4_K and Q5_K share besides `super_blocks`: eight sub-blocks of 32, with scales and minimums of six bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.kernels.codecs.super_blocks import code_plain, code_weighted, pack_six_bit_pairs, spread_weighted
from lbrx.devices.cpu.simd.f32 import absolute, square_root
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.lanes import spread
from lbrx.devices.cpu.simd.vectors import f32x8, load, splat, store

SCALE_TOP = np.float32(63.0)
TILES_BYTES = 3 * 1024 + 64  # values, weights, levels, scales and minimums


@jit
def weigh_by_magnitude(like: Any, values: Any, weights: Any) -> None:
    """Weights of sub-blocks of 32: the root of the mean square of the sub-block plus the magnitude of the value."""
    square_sum = splat(like, 0.0)
    for i in range(32):
        value = load(like, values, i)
        square_sum = square_sum + value * value
    spread_of_values = square_root(square_sum / 32.0)
    for i in range(32):
        store(weights, i, spread_of_values + absolute(load(like, values, i)))


@jit
def code_block(source: Any, tiles: Any, target: Any, top: Any, search: Any) -> None:
    """The 16 bytes of scales of a block; its levels are left in the third tile."""
    like = f32x8(0.0)
    spread(source, tiles, 32, 8)
    weigh_by_magnitude(like, tiles, tiles + 1024)
    scales, lows = code_plain(like, tiles, target, 32, top, SCALE_TOP, search, False)
    _pack_scales(tiles, target, scales, lows)


@jit
def code_block_weighted(source: Any, importance: Any, tiles: Any, target: Any, top: Any) -> None:
    like = f32x8(0.0)
    spread_weighted(like, source, importance, tiles, 32, 8, np.float32(2.0))
    scales, lows = code_weighted(like, tiles, target, 32, 8, top, SCALE_TOP)
    _pack_scales(tiles, target, scales, lows)


@jit
def _pack_scales(tiles: Any, target: Any, scales: Any, lows: Any) -> None:
    work = tiles + 3072
    store(work, 0, scales)
    store(work, 1, lows)
    pack_six_bit_pairs(target + 4, work, work + 32)
