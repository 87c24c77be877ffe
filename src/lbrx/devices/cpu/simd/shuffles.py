"""Lanes of vectors in another order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lbrx.devices.cpu.simd.emit import shuffled
from lbrx.devices.cpu.simd.instruction import Builder, Value, instruction
from lbrx.devices.cpu.simd.vectors import Vector


def make_shuffle(lanes: Sequence[int]) -> Any:
    """A function that takes these lanes of a vector."""

    @instruction(lambda value: Vector(value.element, len(lanes))(value))
    def shuffle(builder: Builder, value: Value) -> Value:
        return shuffled(builder, value, value, lanes)

    return shuffle


first_half, second_half = make_shuffle(range(16)), make_shuffle(range(16, 32))
"""Of 32 lanes."""
