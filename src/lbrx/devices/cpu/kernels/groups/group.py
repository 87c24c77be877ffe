"""How 256 elements of a codec are stored, for all kernels that multiply by codes: see `Group`.

A codec is described once. The products of `gemv_quantized` and the decoded rows of `quantized_rows_i16` are made from
its description.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import types

from lbrx.devices.cpu.simd.byte_codes import BYTES, constant_bytes
from lbrx.devices.cpu.simd.coded_dot import PLANE_BYTES, STEP_BYTES, SUMS, dot_codes
from lbrx.devices.cpu.simd.emit import same, shuffled, store_at
from lbrx.devices.cpu.simd.instruction import I64, Builder, Value, instruction
from lbrx.devices.cpu.simd.vectors import Vector

Codes = Callable[[Builder, Value, int], Sequence[Value]]
PIECES = 32  # of eight elements
MOST_GROUP_BYTES = 512
F32X8: Any = Vector("f32", 8)
F32X16: Any = Vector("f32", 16)


class Group(NamedTuple):
    """256 elements: one block of a codec, or several.

    ``codes(builder, stored, step)`` emits the codes of a step as one or two vectors of 64 bytes, which are added up in
    the same lanes. ``order`` has the piece of eight elements at each position of all these vectors. ``scales(stored)``
    are f32, one for every ``scaled`` elements (16 or 32), and so are ``lows(stored)``, if there are any. The value of
    an element is (code - offset) scale - low.
    """

    nbytes: int
    block_elements: int
    codes: Codes
    order: tuple[int, ...]
    scales: Any
    scaled: int = 32
    lows: Any = None
    offset: int = 0
    is_signed: bool = False
    vectors: int = 1

    @property
    def block_bytes(self) -> int:
        return self.nbytes * self.block_elements // 256

    @property
    def steps(self) -> range:
        return range(4 // self.vectors)


# -- orders ------------------------------------------------------------------------------------------------------------

NATURAL = tuple(range(PIECES))


def _order_of_halves(half_pieces: int) -> tuple[int, ...]:
    pieces: list[int] = []
    for start in range(0, PIECES, 16):
        for half in range(2):
            for block in range(start, start + 16, 2 * half_pieces):
                pieces += [block + half * half_pieces + piece for piece in range(half_pieces)]
    return tuple(pieces)


HALVES_OF_32, HALVES_OF_16 = _order_of_halves(2), _order_of_halves(1)
"""Of every 128 elements first the first halves of all blocks of 32, or of 16, then the second halves."""


# -- what kernels need of a group --------------------------------------------------------------------------------------


def make_dot(group: Group, step: int, bits: int) -> Any:
    """``dot(stored, numbers)``: the sums of a step times numbers of so many bits, in sixteen lanes."""

    @instruction(SUMS(types.int64, types.int64))
    def dot(builder: Builder, stored: Value, numbers: Value) -> Value:
        return dot_codes(builder, group.codes(builder, stored, step), numbers, group.is_signed, bits)

    return dot


def make_spread(group: Group, step: int) -> Any:
    """The scales of a group as those of the sixteen lanes of a step."""
    first = 8 * group.vectors * step
    lanes = []
    for lane in range(16):
        numbers = {8 * group.order[first + 8 * vector + lane // 2] // group.scaled for vector in range(group.vectors)}
        (number,) = numbers  # what is added up has one scale
        lanes.append(number)

    @instruction(lambda value: F32X16(value))
    def spread(builder: Builder, value: Value) -> Value:
        return shuffled(builder, value, value, lanes)

    return spread


def make_offsets(order: tuple[int, ...]) -> Any:
    """The address of int64: where each piece of eight coded numbers belongs, in bytes from the start of a group."""
    offsets = np.zeros(PIECES, "<i8")
    for position, piece in enumerate(order):
        offsets[piece] = STEP_BYTES * (position // 8) + PLANE_BYTES // 8 * (position % 8)
    values = offsets.tobytes()

    @instruction(types.int64())
    def address(builder: Builder) -> Value:
        return constant_bytes(builder, "offsets_of_pieces", values)

    return address


def make_widen(group: Group) -> Any:
    """``widen(stored, out)``: the codes of a group as i16 in their order, 32 of them every 256 bytes."""

    @instruction(types.void(types.int64, types.int64))
    def widen(builder: Builder, stored: Value, out: Value) -> None:
        position = 0
        for step in group.steps:
            for codes in group.codes(builder, stored, step):
                position = _store_widened(builder, group, codes, out, position)

    return widen


def _store_widened(builder: Builder, group: Group, codes: Value, out: Value, position: int) -> int:
    for first in range(0, BYTES.count, 8):
        part = shuffled(builder, codes, codes, range(first, first + 8))
        wide = (builder.sext if group.is_signed else builder.zext)(part, _EIGHT_WORDS)
        if group.offset:
            wide = builder.sub(wide, same(_EIGHT_WORDS, group.offset))
        piece = group.order[position]
        store_at(builder, wide, builder.add(out, I64(256 * (piece // 4) + 16 * (piece % 4))))
        position += 1
    return position


_EIGHT_WORDS = Vector("i16", 8).llvm
