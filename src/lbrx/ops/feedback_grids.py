"""IQ2_S and IQ3_S under error feedback: scales of the usual encoder, and entries that are chosen group by group."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from lbrx.base.fast_dataclass import dataclass
from lbrx.base.threads import run_chunks
from lbrx.devices.cpu.build.native import address, run
from lbrx.ops.feedback_factors import ColumnFactors
from lbrx.ops.matmul import matmul
from lbrx.settings import settings
from lbrx.tensors.codecs.code_bits import Bytes, CodeBits, bytes_from, nibbles_from
from lbrx.tensors.codecs.codec import codec

Floats = npt.NDArray[np.float32]
EncodeBlocks = Callable[[Floats, Floats], Bytes]
_LANES = 16
_COLUMNS = 256  # of a block


@dataclass(frozen=True, eq=False)
class _GridBits:
    """Where a block has numbers of entries (low bytes, then higher bits), signs, and scales of sub-blocks.

    A scale is ``factor`` (code + ``origin``) times the f16 at the start of the block.
    """

    low: CodeBits
    high: CodeBits
    signs: CodeBits
    scales: CodeBits
    factor: float
    origin: float
    group: int  # elements of an entry


def _bits_from(first_byte: int, count: int, bits: int) -> npt.NDArray[np.int64]:
    return (8 * first_byte + bits * np.arange(count))[:, None] + np.arange(bits)


GRID_TYPES = {
    "iq2_s": lambda: _GridBits(
        CodeBits(bytes_from(2, 32)),
        CodeBits(_bits_from(66, 32, 2)),
        CodeBits(_bits_from(34, 256, 1)),
        CodeBits(nibbles_from(74, 16)),
        factor=0.25,
        origin=0.5,
        group=8,
    ),
    "iq3_s": lambda: _GridBits(
        CodeBits(bytes_from(2, 64)),
        CodeBits(_bits_from(66, 64, 1)),
        CodeBits(_bits_from(74, 256, 1)),
        CodeBits(nibbles_from(106, 8)),
        factor=2.0,
        origin=0.5,
        group=4,
    ),
}


def encode_on_grid(
    values: Floats, type_name: str, importance: Floats, factors: ColumnFactors, encode: EncodeBlocks
) -> Bytes:
    """Return the blocks of a matrix [rows, columns] of a type in ``GRID_TYPES``, as bytes [rows, bytes].

    ``encode`` makes blocks of single columns of blocks, without feedback.
    """
    bits, record = GRID_TYPES[type_name](), codec(type_name)
    rows, columns = values.shape
    padded_rows = -(-rows // _LANES) * _LANES
    width = _COLUMNS // len(bits.scales.positions)
    order, upper = factors.ordered((_COLUMNS, width, bits.group), inner=False)
    left = np.zeros((columns, padded_rows), np.float32)
    left[:, :rows] = values.T[order]
    out = np.empty((rows, columns // _COLUMNS, record.block_bytes), np.uint8)
    for start in range(0, columns, _COLUMNS):
        stop = start + _COLUMNS
        number, own_order = order[start] // _COLUMNS, order[start:stop] % _COLUMNS
        natural = np.argsort(own_order)
        blocks = encode(np.ascontiguousarray(left[start + natural, :rows].T), importance[order[start + natural]])
        units = blocks[:, :2].copy().view("<f2").astype(np.float32)
        scales = np.zeros((_COLUMNS // width, padded_rows), np.float32)
        found = units * np.float32(bits.factor) * (bits.scales.read(blocks) + np.float32(bits.origin))
        scales[:, :rows] = found.T[own_order[::width] // width]
        own = np.ascontiguousarray(upper[start:stop, start:stop])
        signs, numbers = _round(left[start:stop], own, scales, bits, type_name)
        bits.signs.put(blocks, signs[natural, :rows].T)
        chosen = numbers[np.argsort(own_order[:: bits.group]), :rows].T
        bits.low.put(blocks, (chosen & 255).astype(np.uint8))
        bits.high.put(blocks, (chosen >> 8).astype(np.uint8))
        out[:, number] = blocks
        if stop < columns:
            later = np.ascontiguousarray(upper[start:stop, stop:].T)
            left[stop:] -= matmul(later, left[start:stop])
    return out.reshape(rows, -1)


def _round(
    left: Floats, factors: Floats, scales: Floats, bits: _GridBits, type_name: str
) -> tuple[Bytes, npt.NDArray[np.int16]]:
    """Signs and entries of all rows of a block; ``left`` then has the errors."""
    codebook = codec(type_name).codebook
    assert codebook is not None
    entries = np.ascontiguousarray(codebook())
    padded_rows = left.shape[1]
    signs = np.empty((_COLUMNS, padded_rows), np.uint8)
    numbers = np.empty((_COLUMNS // bits.group, padded_rows), np.int16)
    sizes = entries.size // bits.group, bits.group, _COLUMNS // len(scales)
    arrays = [address(each) for each in (factors, signs, numbers, scales, entries)]

    def worker() -> Callable[[int], None]:
        def step(group: int) -> None:
            run("codecs.feedback_grids", "grid", address(left), padded_rows // _LANES, group, _COLUMNS, *arrays, *sizes)

        return step

    run_chunks(padded_rows // _LANES, settings.threads, worker)
    return signs, numbers
