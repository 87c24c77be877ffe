"""What TQ1_0 and TQ2_0 share: values -1, 0 and 1 times the largest magnitude of 256."""

from __future__ import annotations

from typing import Any

from lbrx.devices.cpu.simd.f32 import absolute, nearest_away
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.vectors import clamp, f32x32, lane_max, load, maximum, to_i32


@jit
def largest_of_256(values: Any) -> Any:
    like = f32x32(0.0)
    largest = absolute(load(like, values, 0))
    for number in range(1, 8):
        largest = maximum(largest, absolute(load(like, values, number)))
    return lane_max(largest)


@jit
def trits(like: Any, values: Any, number: Any, factor: Any) -> Any:
    """Vector ``number`` of the values as 0, 1 and 2."""
    return to_i32(clamp(nearest_away(load(like, values, number) * factor), -1.0, 1.0)) + 1
