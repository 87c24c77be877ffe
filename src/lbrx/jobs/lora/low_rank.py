"""Products of two thin matrices as a storage: the rows that are asked for are computed as they are read."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import ShapeError
from lbrx.tensors.dtype import DTYPES, DType
from lbrx.tensors.expr import Source
from lbrx.tensors.shape import Layout, Shape
from lbrx.tensors.storage import Bytes, ReadStorage, Storage
from lbrx.tensors.tensor import Tensor

# BLAS may round a row differently when it is multiplied together with others. Rows are therefore always multiplied
# in the same blocks, whatever window is read: results do not depend on threads or chunks.
BLOCK_ROWS = 32
# Multiplications in one call of BLAS. Passes have threads of their own; OpenBLAS starts more for products larger than
# this, and those then wait for each other: several times slower on a busy machine.
CALL_MULTIPLICATIONS = 1 << 18
VALUE_BYTES = 4

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Factor:
    """A stored matrix, perhaps seen transposed, that is read anew whenever its values are needed."""

    storage: Storage
    first_byte: int
    dtype: DType
    stored_shape: tuple[int, int]
    is_transposed: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.stored_shape
        return (columns, rows) if self.is_transposed else (rows, columns)

    def rows(self, first: int, stop: int) -> Floats:
        """These rows in f32, contiguous."""
        elements = self.stored_shape[0] * self.stored_shape[1]
        window = self.storage.read_at(self.first_byte, self.dtype.nbytes(elements))
        if window.ctypes.data % self.dtype.numpy.alignment:
            window = window.copy()
        stored = window.view(self.dtype.numpy).reshape(self.stored_shape)
        values = stored.T if self.is_transposed else stored
        return np.ascontiguousarray(values[first:stop], dtype=np.float32)


def matrix_factor(tensor: Tensor, is_transposed: bool = False) -> Factor:
    """A tensor as a factor: its first axis are rows, all others together columns.

    >>> import lbrx
    >>> matrix_factor(lbrx.tensor([[1, 2, 3]], "bf16"), is_transposed=True).shape
    (3, 1)
    """
    if tensor.ndim < 2 or not tensor.dtype.is_float:
        raise ShapeError(f"a factor is a matrix of floats, not {tensor.dtype} of shape {tensor.shape}")
    stored = tensor if _is_contiguous(tensor) else tensor.realize()
    assert isinstance(stored.expr, Source)
    shape = (tensor.shape[0], int(np.prod(tensor.shape[1:])))
    first_byte = stored.expr.layout.offset * stored.dtype.itemsize
    return Factor(stored.expr.storage, first_byte, stored.dtype, shape, is_transposed)


def _is_contiguous(tensor: Tensor) -> bool:
    expr = tensor.expr
    return isinstance(expr, Source) and expr.rows is None and expr.layout.is_contiguous


class LowRankStorage(ReadStorage):
    """The f32 values of ``left @ right``. It has no address: every read multiplies the rows of its window.

    The right factor is kept in f32 from the first read on, as long as the storage lives.

    >>> import lbrx
    >>> left = matrix_factor(lbrx.tensor([[1, 2], [3, 4]], "f32"))
    >>> right = matrix_factor(lbrx.tensor([[1, 0, 1], [0, 1, 1]], "bf16"))
    >>> LowRankStorage(left, right).read_at(12, 12).view(np.float32)
    array([3., 4., 7.], dtype=float32)
    """

    __slots__ = ("_left", "_right", "_tiles")

    def __init__(self, left: Factor, right: Factor) -> None:
        if left.shape[1] != right.shape[0]:
            raise ShapeError(f"matrices of shapes {left.shape} and {right.shape} cannot be multiplied")
        self._left = left
        self._right = right
        self._tiles: _Tiles | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self._left.shape[0], self._right.shape[1]

    @property
    def nbytes(self) -> int:
        return VALUE_BYTES * self.shape[0] * self.shape[1]

    def read_into(self, offset: int, buffer: Bytes) -> None:
        """Compute a window; its ends may lie within a row."""
        rows, columns = self.shape
        block_bytes = BLOCK_ROWS * columns * VALUE_BYTES
        done = 0
        while done < buffer.size:
            block, skipped = divmod(offset + done, block_bytes)
            first, stop = block * BLOCK_ROWS, min((block + 1) * BLOCK_ROWS, rows)
            whole = (stop - first) * columns * VALUE_BYTES
            part = buffer[done : done + whole - skipped]
            if part.size == whole and part.ctypes.data % VALUE_BYTES == 0:
                self._multiply(first, stop, part.view(np.float32).reshape(stop - first, columns))
            else:
                product = np.empty((stop - first, columns), np.float32)
                self._multiply(first, stop, product)
                part[:] = product.reshape(-1).view(np.uint8)[skipped : skipped + part.size]
            done += part.size

    def _multiply(self, first: int, stop: int, out: Floats) -> None:
        tiles = self._tiles
        if tiles is None:  # two threads may both come here first: they compute the same
            tiles = self._tiles = _tiled(self._right)
        left = self._left.rows(first, stop)
        count, _, width = tiles.whole.shape
        tiled = out[:, : count * width].reshape(stop - first, count, width)  # a view: only an axis is split
        np.matmul(left, tiles.whole, out=tiled.transpose(1, 0, 2))
        np.matmul(left, tiles.rest, out=out[:, count * width :])


class _Tiles(NamedTuple):
    """The columns of a matrix in tiles of one width, as (tiles, rows, width), and those that are left over."""

    whole: Floats
    rest: Floats


def _tiled(matrix: Factor) -> _Tiles:
    rows, columns = matrix.shape
    width = max(CALL_MULTIPLICATIONS // (BLOCK_ROWS * rows), 1)
    count = columns // width
    values = matrix.rows(0, rows)
    whole = values[:, : count * width].reshape(rows, count, width).transpose(1, 0, 2)
    return _Tiles(np.ascontiguousarray(whole), np.ascontiguousarray(values[:, count * width :]))


def low_rank_product(left: Factor, right: Factor, shape: Shape) -> Tensor:
    """``left @ right`` as an f32 tensor of a shape with equally many elements; nothing is computed yet.

    >>> import lbrx
    >>> left, right = (matrix_factor(lbrx.tensor(values, "f32")) for values in ([[1], [2]], [[3, 4]]))
    >>> low_rank_product(left, right, (2, 2)).numpy()
    array([[3., 4.],
           [6., 8.]], dtype=float32)
    """
    storage = LowRankStorage(left, right)
    if int(np.prod(shape)) * VALUE_BYTES != storage.nbytes:
        raise ShapeError(f"a product of shape {storage.shape} does not have the elements of shape {shape}")
    return Tensor(Source(storage, DTYPES["f32"], Layout.contiguous(shape)))
