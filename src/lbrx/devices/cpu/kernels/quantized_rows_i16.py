"""Rows of quantized blocks as i16 codes with a scale, and a value to take off, for every 32 or 16 of them.

``take`` functions decode elements ``first`` to ``stop`` - 1 (whole blocks) of some rows, whose bytes lie one row after
the other. Codes of four rows lie together: 32 of the first, 32 of the second, and so on, then the next 32 of the first.
Scales and lows go to rows of SCALE_ROW_BYTES. There is a function for each codec, made from its description in
`groups`; `gemm_i16` calls it by its address.
"""

from __future__ import annotations

from typing import Any

from lbrx.devices.cpu.kernels.groups.group import MOST_GROUP_BYTES, Group, make_widen
from lbrx.devices.cpu.kernels.groups.table import GROUPS
from lbrx.devices.cpu.simd.instruction import inlined
from lbrx.devices.cpu.simd.memory import copied_bytes, stack_bytes
from lbrx.devices.cpu.simd.vectors import store

STEP = 512  # elements of a row that are decoded at a time
CODE_ROW_BYTES = 2 * STEP
SCALE_ROW_BYTES = 4 * STEP // 16


def make_take(group: Group, store_codes: Any, in_bytes: bool = False) -> Any:
    """A ``take`` function. Behind ``stop`` it writes up to the end of a group of 256: those codes mean nothing.

    ``store_codes(stored, out, lows)`` stores the codes of a group, which are words, or bytes in the order of a row.
    """
    scales_of, lows_of = group.scales, group.lows
    has_lows, number_bytes = group.lows is not None, 4 * 256 // group.scaled
    code_bytes = 256 if in_bytes else 2048  # from a group of a row to the next
    nbytes, block_elements, block_bytes = group.nbytes, group.block_elements, group.block_bytes

    @inlined
    def take_group(stored: Any, out: Any, scales: Any, lows: Any) -> None:
        store_codes(stored, out, lows)
        store(scales, 0, scales_of(stored))
        if has_lows:
            store(lows, 0, lows_of(stored))

    def take(blocks: int, rows: int, columns: int, first: int, stop: int, codes: int, scales: int, lows: int) -> None:
        buffer = stack_bytes(MOST_GROUP_BYTES)
        groups, rest_bytes = (stop - first) // 256, (stop - first) % 256 // block_elements * block_bytes
        for row in range(rows):
            stored = blocks + block_bytes * (columns // block_elements * row + first // block_elements)
            out = codes + (STEP * row if in_bytes else 4 * CODE_ROW_BYTES * (row // 4) + 64 * (row % 4))
            own_scales, own_lows = scales + SCALE_ROW_BYTES * row, lows + SCALE_ROW_BYTES * row
            for number in range(groups):
                offset = number_bytes * number
                at = stored + nbytes * number
                take_group(at, out + code_bytes * number, own_scales + offset, own_lows + offset)
            if rest_bytes > 0:
                rest, offset = copied_bytes(stored + nbytes * groups, rest_bytes, buffer), number_bytes * groups
                take_group(rest, out + code_bytes * groups, own_scales + offset, own_lows + offset)

    return take


def _make_store_words(group: Group) -> Any:
    widen = make_widen(group)

    @inlined
    def store_words(stored: Any, out: Any, _lows: Any) -> None:
        widen(stored, out)

    return store_words


def __getattr__(name: str) -> Any:
    """The function of a codec, made when it is compiled."""
    if name not in GROUPS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return make_take(GROUPS[name], _make_store_words(GROUPS[name]))
