"""Norms, activations and rope on arrays: kernels on some rows or elements at a time, on all threads."""

from __future__ import annotations

import numpy as np

from lbrx.devices.cpu.build.native import address, bits, run
from lbrx.engine.arrays import Floats
from lbrx.engine.blas import in_ranges

ROW_OPERATIONS = ("softmax", "rms_norm", "layer_norm")
CHUNK_ELEMENTS = 32 << 10


def apply(operation: str, values: Floats, others: tuple[Floats, ...] = (), numbers: tuple[float, ...] = ()) -> Floats:
    """An operation of `lbrx.engine.device.ARRAY_OPERATIONS`."""
    out = np.empty_like(values)
    if values.size:
        work = _rows if operation in ROW_OPERATIONS else _rope if operation == "rope" else _elements
        work(operation, values, out, others, [bits(number) for number in numbers])
    return out


def _rows(operation: str, values: Floats, out: Floats, others: tuple[Floats, ...], numbers: list[int]) -> None:
    source, target, columns = address(values), address(out), values.shape[-1]
    arguments = *map(address, others), *numbers

    def work(first: int, stop: int) -> None:
        skipped = 4 * columns * first
        run("norms", operation, source + skipped, target + skipped, stop - first, columns, *arguments)

    in_ranges(values.size // columns, max(1, CHUNK_ELEMENTS // columns), work)


def _elements(operation: str, values: Floats, out: Floats, others: tuple[Floats, ...], numbers: list[int]) -> None:
    source, target, addresses = address(values), address(out), [address(other) for other in others]

    def work(first: int, stop: int) -> None:
        skipped = 4 * first
        arguments = *(other + skipped for other in addresses), *numbers
        run("elementwise", operation, source + skipped, target + skipped, stop - first, *arguments)

    in_ranges(values.size, 2 * CHUNK_ELEMENTS, work)


def _rope(operation: str, values: Floats, out: Floats, others: tuple[Floats, ...], numbers: list[int]) -> None:
    source, target, tables = address(values), address(out), [address(table) for table in others]
    rows, columns = values.shape[-2:]
    is_interleaved, pairs = int(numbers[0] != 0), others[0].shape[1]

    def work(first: int, stop: int) -> None:
        for matrix in range(first, stop):
            at = 4 * rows * columns * matrix
            run("elementwise", operation, source + at, target + at, rows, columns, pairs, *tables, is_interleaved)

    in_ranges(values.size // (rows * columns), max(1, CHUNK_ELEMENTS // (rows * columns)), work)
