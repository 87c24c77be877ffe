"""Types whose scales are searched under error feedback: their kernels, and blocks from codes and scales."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.base.fast_dataclass import dataclass
from lbrx.base.threads import run_chunks
from lbrx.devices.cpu.build.native import address, run
from lbrx.ops.feedback_factors import ColumnFactors, Order
from lbrx.ops.matmul import matmul
from lbrx.settings import settings
from lbrx.tensors.codecs.code_bits import BlockField, Bytes, block_fields, code_bits
from lbrx.tensors.codecs.codec import codec

Floats = npt.NDArray[np.float32]
_LANES = 16  # rows that a kernel rounds side by side
_PANEL_COLUMNS = 256


@dataclass(frozen=True)
class SearchedType:
    """A kernel and its last arguments; ``code_origin`` is added to its codes."""

    kernel: str
    numbers: tuple[int, ...]
    code_origin: int = 0


SEARCHED_TYPES = {
    "q4_0": SearchedType("symmetric", (-8, 7, 9)),
    "q5_0": SearchedType("symmetric", (-16, 15, 6)),
    "q8_0": SearchedType("symmetric", (-127, 127, 2), code_origin=1),
    "iq4_nl": SearchedType("table", (-127, 113, 9)),
    "q4_1": SearchedType("with_min", (15, 4)),
    "q5_1": SearchedType("with_min", (31, 3)),
    "q2_k": SearchedType("super_with_min", (16, 3, 15, 6)),
    "q4_k": SearchedType("super_with_min", (32, 15, 63, 4)),
    "q5_k": SearchedType("super_with_min", (32, 31, 63, 3)),
    "q3_k": SearchedType("super_symmetric", (16, -4, 3, 32, 9)),
    "q6_k": SearchedType("super_symmetric", (16, -32, 31, 128, 4)),
    "iq4_xs": SearchedType("super_table", (32, -127, 113, 32, 9)),
}


def encode_searched(values: Floats, type_name: str, factors: ColumnFactors) -> Bytes:
    """Return the blocks of a matrix [rows, columns] of a type in ``SEARCHED_TYPES``, as bytes [rows, bytes]."""
    searched, fields = SEARCHED_TYPES[type_name], block_fields(type_name)
    rows, columns = values.shape
    padded_rows = -(-rows // _LANES) * _LANES
    order, upper = factors.ordered(sorted({field.elements for field in fields}, reverse=True))
    left = np.zeros((columns, padded_rows), np.float32)
    left[:, :rows] = values.T[order]
    codes = np.empty((columns, padded_rows), np.uint8)
    numbers = [np.empty((columns // field.elements, padded_rows), np.float32) for field in fields]
    for start in range(0, columns, _PANEL_COLUMNS):
        stop = min(start + _PANEL_COLUMNS, columns)
        own = np.ascontiguousarray(upper[start:stop, start:stop])
        parts = [each[start // field.elements :] for each, field in zip(numbers, fields, strict=True)]
        _round_panel(searched, left[start:stop], own, codes[start:stop], parts)
        if stop < columns:
            later = np.ascontiguousarray(upper[start:stop, stop:].T)
            left[stop:] -= matmul(later, left[start:stop])
    codes += np.uint8(searched.code_origin)
    in_place = [
        _in_place(each[:, :rows], order[:: field.elements] // field.elements)
        for each, field in zip(numbers, fields, strict=True)
    ]
    return _assembled(type_name, _in_place(codes[:, :rows], order), in_place, fields)


def _in_place(found: npt.NDArray[Any], places: Order) -> npt.NDArray[Any]:
    """Results of columns or blocks in another order, as [rows, columns or blocks]."""
    result = np.empty_like(found)
    result[places] = found
    return result.T


def _round_panel(
    searched: SearchedType, left: Floats, factors: Floats, codes: Bytes, numbers: Sequence[Floats]
) -> None:
    """Round all rows of a panel; ``left`` then has the errors."""
    columns, groups = left.shape[0], left.shape[1] // _LANES
    arrays = [address(factors), address(codes), *(address(each) for each in numbers)]

    def worker() -> Callable[[int], None]:
        def step(group: int) -> None:
            run("codecs.feedback", searched.kernel, address(left), groups, group, columns, *arrays, *searched.numbers)

        return step

    run_chunks(groups, settings.threads, worker)


def _assembled(
    type_name: str, codes: npt.NDArray[Any], numbers: Sequence[npt.NDArray[Any]], fields: Sequence[BlockField]
) -> Bytes:
    """Blocks with these codes and scales."""
    record, bits = codec(type_name), code_bits(type_name)
    assert bits is not None
    rows, columns = codes.shape
    blocks = np.zeros((rows * columns // record.block_elements, record.block_bytes), np.uint8)
    bits.put(blocks, codes.reshape(-1, record.block_elements))
    for given, field in zip(numbers, fields, strict=True):
        values = given.reshape(len(blocks), -1)
        if field.byte is not None:
            blocks[:, field.byte : field.byte + 2] = values.astype("<f2").view(np.uint8)
        elif field.bits is not None:
            field.bits.put(blocks, (values + np.float32(field.origin)).astype(np.uint8))
    return blocks.reshape(rows, -1)
