"""Rows of quantized blocks as i8 codes in their order, with a scale, and a value to take off, for every 32 or 16.

``take`` functions are those of `quantized_rows_i16`, but for the layout: a row has a byte for each of STEP elements.
Behind the lows of all rows come numbers of i32, laid out like scales: -128 times the sum of the codes that share a
scale. There is a function for each codec, made from its description in `groups`; `gemm_i8` calls it by its address.
"""

from __future__ import annotations

from typing import Any

from numba import types

from lbrx.devices.cpu.kernels.groups.group import Group
from lbrx.devices.cpu.kernels.groups.table import GROUPS
from lbrx.devices.cpu.kernels.quantized_rows_i16 import SCALE_ROW_BYTES, make_take
from lbrx.devices.cpu.simd.byte_codes import BYTES
from lbrx.devices.cpu.simd.coded_dot import add_byte_products
from lbrx.devices.cpu.simd.emit import same, shuffled, store_at
from lbrx.devices.cpu.simd.i16 import I32X16
from lbrx.devices.cpu.simd.instruction import I64, Builder, Value, instruction

MOST_ROWS = 64
LOWS_BYTES = SCALE_ROW_BYTES * MOST_ROWS


def _in_order(builder: Builder, group: Group, step: int, vectors: list[Value]) -> list[Value]:
    """The codes of a step in the order of the elements."""
    first = 8 * group.vectors * step
    pieces = group.order[first : first + 8 * group.vectors]
    ordered = []
    for start in range(min(pieces), max(pieces), 8):
        lanes = [8 * pieces.index(piece) + lane for piece in range(start, start + 8) for lane in range(8)]
        ordered.append(shuffled(builder, vectors[0], vectors[-1], lanes))
    return ordered


def _sums_of_neighbours(builder: Builder, left: Value, right: Value) -> Value:
    """Neighbouring lanes of two vectors added."""
    even, odd = (shuffled(builder, left, right, range(at, 2 * left.type.count, 2)) for at in (0, 1))
    return builder.add(even, odd)


def _sums_of_codes(builder: Builder, chunks: list[Value], scaled: int) -> Value:
    """-128 times the sums of every 16 or 32 of 256 codes."""
    ones = same(BYTES, 128)
    fours = [add_byte_products(builder, same(I32X16.llvm, 0), ones, chunk) for chunk in chunks]
    eights = [_sums_of_neighbours(builder, fours[at], fours[at + 1]) for at in (0, 2)]
    sums = _sums_of_neighbours(builder, *eights)
    if scaled == 32:
        even, odd = (shuffled(builder, sums, sums, range(at, 16, 2)) for at in (0, 1))
        sums = builder.add(even, odd)
    return builder.sub(same(sums.type, 0), sums)


def _make_store_codes(group: Group) -> Any:
    @instruction(types.void(types.int64, types.int64, types.int64))
    def store_codes(builder: Builder, stored: Value, out: Value, lows: Value) -> None:
        chunks: list[Value] = []
        for step in group.steps:
            chunks += _in_order(builder, group, step, list(group.codes(builder, stored, step)))
        if group.offset:
            chunks = [builder.sub(chunk, same(BYTES, group.offset)) for chunk in chunks]
        for number, chunk in enumerate(chunks):
            store_at(builder, chunk, builder.add(out, I64(BYTES.count * number)))
        sums = _sums_of_codes(builder, chunks, group.scaled)
        store_at(builder, sums, builder.add(lows, I64(LOWS_BYTES)))

    return store_codes


def __getattr__(name: str) -> Any:
    """The function of a codec, made when it is compiled."""
    if name not in GROUPS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return make_take(GROUPS[name], _make_store_codes(GROUPS[name]), in_bytes=True)
