"""Products of two thin matrices: blocks of rows are computed as they are read."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lbrx.engine.arrays import Floats, floats
from lbrx.tensors.tensor import Tensor

# Multiplications in one call of BLAS. Passes have threads of their own; OpenBLAS starts more for products larger than
# this, and those then wait for each other: several times slower on a busy machine.
CALL_MULTIPLICATIONS = 1 << 18


class LowRankProduct:
    """``left @ right`` in blocks of rows.

    BLAS may round a row differently when it is multiplied together with others. Rows are therefore always multiplied
    in the same blocks, whatever window is read. The right factor is kept in f32.
    """

    def __init__(self, left: Tensor, right: Tensor, block_rows: int) -> None:
        self._left, self._storage = left.numpy(), left.storage
        self._tiles = _tiled(floats(right), block_rows)
        self.panel_rows = block_rows

    def panel(self, row: int) -> tuple[int, int]:
        first = row // self.panel_rows * self.panel_rows
        return first, min(first + self.panel_rows, self._left.shape[0])

    def multiply(self, first: int, stop: int, out: Floats) -> None:
        if self._storage is not None:
            self._storage.read_at(0, 0)  # says so if a file is no longer there
        left = np.ascontiguousarray(self._left[first:stop], dtype=np.float32)
        count, _, width = self._tiles.whole.shape
        tiled = out[:, : count * width].reshape(stop - first, count, width)  # a view: only an axis is split
        np.matmul(left, self._tiles.whole, out=tiled.transpose(1, 0, 2))
        np.matmul(left, self._tiles.rest, out=out[:, count * width :])


class _Tiles(NamedTuple):
    """The columns of a matrix in tiles of one width, as (tiles, rows, width), and those that are left over."""

    whole: Floats
    rest: Floats


def _tiled(values: Floats, block_rows: int) -> _Tiles:
    rows, columns = values.shape
    width = max(CALL_MULTIPLICATIONS // (block_rows * max(rows, 1)), 1)
    count = columns // width
    whole = values[:, : count * width].reshape(rows, count, width).transpose(1, 0, 2)
    return _Tiles(np.ascontiguousarray(whole), np.ascontiguousarray(values[:, count * width :]))
