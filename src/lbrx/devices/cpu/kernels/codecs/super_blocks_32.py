"""What Q4_K and Q5_K share besides `super_blocks`: eight sub-blocks of 32, with scales and minimums of six bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.kernels.codecs.super_blocks import (
    code_plain,
    code_weighted,
    pack_six_bit_pairs,
    six_bit_pair,
    spread_weighted,
)
from lbrx.devices.cpu.simd.elements import load_f16
from lbrx.devices.cpu.simd.f32 import absolute, square_root
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.lanes import spread
from lbrx.devices.cpu.simd.memory import stack_bytes
from lbrx.devices.cpu.simd.vectors import f32x8, load, splat, store, to_f32

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
def _code_block(source: Any, tiles: Any, target: Any, top: Any, search: Any) -> None:
    """The 16 bytes of scales of a block; its levels are left in the third tile."""
    like = f32x8(0.0)
    spread(source, tiles, 32, 8)
    weigh_by_magnitude(like, tiles, tiles + 1024)
    scales, lows = code_plain(like, tiles, target, 32, top, SCALE_TOP, search, False)
    _pack_scales(tiles, target, scales, lows)


@jit
def _code_block_weighted(source: Any, importance: Any, tiles: Any, target: Any, top: Any) -> None:
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


def make_encoders(block_bytes: int, top: Any, search: Any, pack: Any) -> Any:
    """The functions ``encode`` and ``encode_weighted`` of a type. ``pack(levels, target)`` writes the codes."""

    def encode(source: int, target: int, blocks: int) -> None:
        tiles = stack_bytes(TILES_BYTES)
        for block in range(blocks):
            out = target + block_bytes * block
            _code_block(source + 1024 * block, tiles, out, top, search)
            pack(tiles + 2048, out + 16)

    def encode_weighted(source: int, target: int, rows: int, blocks_per_row: int, importance: int) -> None:
        tiles = stack_bytes(TILES_BYTES)
        for block in range(rows * blocks_per_row):
            out, weights = target + block_bytes * block, importance + 1024 * (block % blocks_per_row)
            _code_block_weighted(source + 1024 * block, weights, tiles, out, top)
            pack(tiles + 2048, out + 16)

    return encode, encode_weighted


@jit
def load_units(stored: Any) -> Any:
    """What the scales and the minimums of a block are multiplied with."""
    return load_f16(stored, 0), load_f16(stored, 1)


@jit
def store_pair(stored: Any, units: Any, out: Any, pair: Any, first: Any, second: Any) -> None:
    """The values of two sub-blocks with these codes."""
    unit, low_unit = units
    scale, low = six_bit_pair(stored + 4, 2 * pair)
    store(out, 2 * pair, to_f32(first) * (unit * np.float32(scale)) - low_unit * np.float32(low))
    scale, low = six_bit_pair(stored + 4, 2 * pair + 1)
    store(out, 2 * pair + 1, to_f32(second) * (unit * np.float32(scale)) - low_unit * np.float32(low))
