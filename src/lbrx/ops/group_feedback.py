"""Encode a matrix in groups of columns with a scale and an offset each, as MLX, GPTQ and compressed-tensors have them.

Grids are searched with the importance of each column. With factors of a Gram matrix, later columns make up for what
rounding takes away from earlier ones; see `lbrx.ops.feedback`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.base.fast_dataclass import dataclass
from lbrx.base.threads import run_chunks
from lbrx.devices.cpu.build.native import address, run
from lbrx.devices.cpu.kernels.codecs.group_feedback import FREE, SYMMETRIC, WITH_ZERO_POINT
from lbrx.ops.feedback_factors import ColumnFactors
from lbrx.ops.matmul import matmul
from lbrx.settings import settings

Floats = npt.NDArray[np.float32]
Codes = npt.NDArray[np.uint8]
KINDS = {"symmetric": SYMMETRIC, "zero point": WITH_ZERO_POINT, "free": FREE}
_NUMBER_TYPES = {"f32": 0, "f16": 1, "bf16": 2}
_ROWS_AT_A_TIME = 32  # of a step of a thread
_ROWS_TO_PACK = 1024


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """Codes of ``bits`` in groups of ``size`` columns.

    Grids are around zero (``"symmetric"``), begin a whole number of steps below zero (``"zero point"``), or anywhere
    (``"free"``). Steps, and free offsets, are rounded to ``number_type``.
    """

    bits: int
    size: int
    kind: str
    number_type: str


@dataclass(frozen=True, slots=True)
class GroupCodes:
    """Codes [rows, columns], and the low end and the step of each group [rows, groups]: values are low + code step."""

    codes: Codes
    lows: Floats
    steps: Floats

    def values(self) -> Floats:
        """Return the values.

        >>> codes = np.array([[0, 3]], np.uint8)
        >>> GroupCodes(codes, np.array([[-1.0]], np.float32), np.array([[0.5]], np.float32)).values()
        array([[-1. ,  0.5]], dtype=float32)
        """
        width = self.codes.shape[1] // self.lows.shape[1]
        lows, steps = (np.repeat(each, width, axis=1) for each in (self.lows, self.steps))
        found: Floats = lows + self.codes * steps
        return found


def encode_groups(
    values: Floats, spec: GroupSpec, importance: Floats, factors: ColumnFactors | None = None
) -> GroupCodes:
    """Encode a matrix [rows, columns]; ``importance`` has a weight for each column, such as the mean square of inputs.

    >>> random = np.random.default_rng(1)
    >>> weight, importance = random.normal(size=(8, 64)).astype(np.float32), np.ones(64, np.float32)
    >>> found = encode_groups(weight, GroupSpec(4, 32, "free", "f16"), importance)
    >>> bool(np.square(found.values() - weight).mean() < 0.012)
    True
    """
    rows, columns = values.shape
    size = spec.size
    order, upper = (np.arange(columns), None) if factors is None else factors.ordered((size,))
    left = np.ascontiguousarray(values[:, order], np.float32)
    codes = np.empty((rows, columns), np.uint8)
    grids = np.empty((columns // size, rows, 2), np.float32)
    for start in range(0, columns, size):
        stop = start + size
        own = None if upper is None else np.ascontiguousarray(upper[start:stop, start:stop])
        weights, part = importance[order[start:stop]].astype(np.float32), np.ascontiguousarray(left[:, start:stop])
        errors, codes[:, order[start:stop]] = _group(part, spec, weights, own, grids[order[start] // size])
        if upper is not None and stop < columns:
            left[:, stop:] -= matmul(errors, np.ascontiguousarray(upper[start:stop, stop:]))
    lows, steps = (np.ascontiguousarray(grids[:, :, part].T) for part in (0, 1))
    return GroupCodes(codes, lows, steps)


def packed_words(codes: Codes, bits: int) -> npt.NDArray[np.uint32]:
    """Return the codes of each row as a stream of bits in words of 32, lowest bits first.

    >>> packed_words(np.array([[1, 2, 3, 4, 5, 6, 7, 8]], np.uint8), 4)
    array([[2271560481]], dtype=uint32)
    """
    rows = len(codes)
    words = np.empty((rows, codes.shape[1] * bits // 32), np.uint32)
    for first in range(0, rows, _ROWS_TO_PACK):
        part = codes[first : first + _ROWS_TO_PACK]
        stream = np.unpackbits(part[..., None], axis=-1, count=bits, bitorder="little")
        words[first : first + _ROWS_TO_PACK] = np.packbits(
            stream.reshape(len(part), -1), axis=1, bitorder="little"
        ).view("<u4")
    return words


def _group(
    part: Floats, spec: GroupSpec, weights: Floats, factors: Floats | None, grids: Floats
) -> tuple[Floats, Codes]:
    """Encode a group of columns; returns the errors for later columns, and the codes."""
    codes = np.empty(part.shape, np.uint8)
    errors = np.empty(part.shape if factors is not None else (1, 1), np.float32)
    rows, size = part.shape
    arrays: tuple[npt.NDArray[Any], ...] = (part, codes, grids, errors)
    numbers = (1 << spec.bits) - 1, KINDS[spec.kind], _NUMBER_TYPES[spec.number_type]
    shared = address(weights), 0 if factors is None else address(factors)

    def worker() -> Callable[[int], None]:
        def step(number: int) -> None:
            first = number * _ROWS_AT_A_TIME
            count = min(_ROWS_AT_A_TIME, rows - first)
            values, *outputs = (address(each) + first * each.strides[0] for each in arrays)
            run("codecs.group_feedback", "encode", values, count, size, *shared, *outputs, *numbers)

        return step

    run_chunks(-(-rows // _ROWS_AT_A_TIME), settings.threads, worker)
    return errors, codes
