"""IQ4_NL: blocks of 32 as an f16 scale and 32 codes of four bits for values of a table, in 18 bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.kernels.codecs.halves import high_nibbles, low_nibbles
from lbrx.devices.cpu.kernels.codecs.nonlinear import decoded, fit_nonlinear_scale, store_nonlinear_codes
from lbrx.devices.cpu.simd.elements import load_f16, load_f32, store_byte, store_f16
from lbrx.devices.cpu.simd.f32 import square_root
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.lanes import weigh_by_square
from lbrx.devices.cpu.simd.memory import peek_f32, peek_i32, poke_f32, stack_bytes
from lbrx.devices.cpu.simd.vectors import f32x8, load, splat, store

LANES = 8
TILES_BYTES = 3 * 1024 + 32  # values, weights, codes, then the scales


@jit
def _spread(source: Any, tile: Any, first: Any, blocks: Any, blocks_per_row: Any) -> None:
    """Blocks ``first`` and following side by side, each with its columns of a row; behind the last one it repeats."""
    for number in range(LANES):
        start = 32 * (min(first + number, blocks - 1) % blocks_per_row)
        for i in range(32):
            poke_f32(tile, LANES * i + number, load_f32(source, start + i))


@jit
def _weigh(like: Any, tiles: Any) -> None:
    """Importances in the second tile times the root of twice the mean square of the block plus the square."""
    square_sum = splat(like, 0.0)
    for i in range(32):
        value = load(like, tiles, i)
        square_sum = square_sum + value * value
    mean_square = square_sum * np.float32(2.0 / 32.0)
    for i in range(32):
        value = load(like, tiles, i)
        store(tiles + 1024, i, load(like, tiles + 1024, i) * square_root(mean_square + value * value))


@jit
def _finish(like: Any, tiles: Any, target: Any, count: Any) -> None:
    scales = fit_nonlinear_scale(like, tiles, tiles + 1024)
    store(tiles + 3072, 0, scales)
    store_nonlinear_codes(like, tiles, tiles + 2048, scales)
    for number in range(count):
        out = target + 18 * number
        store_f16(out, 0, peek_f32(tiles + 3072, number))
        for i in range(16):
            first = peek_i32(tiles + 2048, LANES * i + number)
            second = peek_i32(tiles + 2048, LANES * (i + 16) + number)
            store_byte(out + 2, i, np.uint8(first | (second << 4)))


def encode(source: int, target: int, blocks: int) -> None:
    tiles = stack_bytes(TILES_BYTES)
    like = f32x8(0.0)
    for first in range(0, blocks, LANES):
        _spread(source, tiles, first, blocks, blocks)
        weigh_by_square(like, tiles, tiles + 1024, 32)
        _finish(like, tiles, target + 18 * first, min(LANES, blocks - first))


def encode_weighted(source: int, target: int, rows: int, blocks_per_row: int, importance: int) -> None:
    tiles = stack_bytes(TILES_BYTES)
    like = f32x8(0.0)
    blocks = rows * blocks_per_row
    for first in range(0, blocks, LANES):
        _spread(source, tiles, first, blocks, blocks)
        _spread(importance, tiles + 1024, first, blocks, blocks_per_row)
        _weigh(like, tiles)
        _finish(like, tiles, target + 18 * first, min(LANES, blocks - first))


def decode(source: int, target: int, blocks: int) -> None:
    for block in range(blocks):
        stored, out = source + 18 * block, target + 128 * block
        scale = load_f16(stored, 0)
        store(out, 0, decoded(low_nibbles(stored + 2), scale))
        store(out, 1, decoded(high_nibbles(stored + 2), scale))
