"""Blocks side by side: a tile of vectors in which lane j of vector i is element i of block j.

Sums over the elements of a block then run in the order of the elements, in every lane by itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.simd.elements import load_f32
from lbrx.devices.cpu.simd.f32 import absolute, square_root
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.memory import poke_f32
from lbrx.devices.cpu.simd.vectors import load, select, splat, store


@jit
def spread(source: Any, tile: Any, elements: Any, lanes: Any) -> None:
    """Put ``lanes`` blocks of f32 that lie one after the other side by side."""
    for lane in range(lanes):
        for i in range(elements):
            poke_f32(tile, i * lanes + lane, load_f32(source, lane * elements + i))


@jit
def sum_of_squares(source: Any, count: Any) -> Any:
    """In f32 and in the order of the elements."""
    total = np.float32(0.0)
    for i in range(count):
        value = load_f32(source, i)
        total += value * value
    return total


@jit
def sums(like: Any, tile: Any, elements: Any) -> Any:
    """The sum of every lane."""
    total = splat(like, 0.0)
    for i in range(elements):
        total = total + load(like, tile, i)
    return total


@jit
def lane_extremes(like: Any, tile: Any, elements: Any) -> Any:
    """In every lane the largest magnitude, and the first element that has it."""
    largest = splat(like, 0.0)
    extreme = splat(like, 0.0)
    for i in range(elements):
        value = load(like, tile, i)
        magnitude = absolute(value)
        is_larger = magnitude > largest
        largest = select(is_larger, magnitude, largest)
        extreme = select(is_larger, value, extreme)
    return largest, extreme


@jit
def weigh_by_square(like: Any, values: Any, weights: Any, elements: Any) -> None:
    """Weights that are the squares of the values."""
    for i in range(elements):
        value = load(like, values, i)
        store(weights, i, value * value)


@jit
def weigh_by_importance(like: Any, values: Any, weights: Any, elements: Any, mean_square: Any) -> None:
    """Multiply importances, in place, by how large the values are: w sqrt(mean_square + x x)."""
    for i in range(elements):
        value = load(like, values, i)
        store(weights, i, load(like, weights, i) * square_root(value * value + mean_square))
