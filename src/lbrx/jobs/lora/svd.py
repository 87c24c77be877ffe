"""The leading singular vectors of a matrix that is read in blocks of rows, by a randomized range finder.

The matrix is multiplied with a thin random sketch and, a few times over, with its own transpose, which turns the
sketch towards the leading singular vectors; the projection onto them is small enough for an ordinary SVD. Blocks and
sketches depend on shapes and names alone, so that equal inputs give equal factors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.base.fast_dataclass import dataclass
from lbrx.engine.blas import all_blas_threads, in_pieces, one_blas_thread
from lbrx.memory import budget
from lbrx.tensors.creation import normal
from lbrx.tensors.tensor import Tensor

BLOCK_BYTES = 32 << 20
PIECE = 256  # rows or columns that one thread multiplies at a time
MAX_WIDTH_ON_ONE_THREAD = 512  # decompositions of wider matrices are left to the threads of LAPACK
MIN_OVERSAMPLING = 16
POWER_ITERATIONS = 3
GRAM_ROWS = 512
_SHARE_OF_BUDGET_KEPT = 4

Matrix = npt.NDArray[Any]  # f32 or f64, and products are computed in that
Doubles = npt.NDArray[np.float64]


class RowBlocks:
    """A matrix expression in blocks of rows, in f32: computed for every walk over it, or kept if that is cheap.

    >>> import lbrx
    >>> blocks = RowBlocks(lbrx.full((3, 2), 1.5, "f32"))
    >>> [(first, block.shape) for first, block in blocks.walk()]
    [(0, (3, 2))]
    """

    def __init__(self, matrix: Tensor) -> None:
        self._matrix = matrix.to("f32")
        self.shape = (matrix.shape[0], matrix.shape[1])
        self._block_rows = max(BLOCK_BYTES // max(4 * self.shape[1], 1), 1)
        is_small = 4 * matrix.size <= max(budget().limit_bytes // _SHARE_OF_BUDGET_KEPT, 1)
        self._kept: dict[int, npt.NDArray[np.float32]] | None = {} if is_small else None

    def walk(self) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
        """Every block with the number of its first row, in order."""
        for first in range(0, self.shape[0], self._block_rows):
            block = None if self._kept is None else self._kept.get(first)
            if block is None:
                block = self._matrix[first : first + self._block_rows].numpy()
                if self._kept is not None:
                    self._kept[first] = block
            yield first, block

    def transposed(self) -> RowBlocks:
        """The transposed matrix, divided into its own blocks."""
        return RowBlocks(self._matrix.T)

    def gram(self) -> Doubles:
        """The product of the transposed matrix with the matrix, in f64."""
        columns = self.shape[1]
        product = np.zeros((columns, columns), np.float64)
        for _, block in self.walk():
            for part in _row_pieces(block):

                def multiply(first: int, stop: int, part: Doubles = part) -> None:
                    product[first:stop] += part[:, first:stop].T @ part

                in_pieces(columns, PIECE, multiply)
        return product

    def times(self, right: Matrix) -> Matrix:
        """The product with a matrix of as many rows as this one has columns."""
        product = np.empty((self.shape[0], right.shape[1]), right.dtype)
        for start, block in self.walk():

            def multiply(first: int, stop: int, start: int = start, block: Matrix = block) -> None:
                rows = block[first:stop].astype(right.dtype, copy=False)
                np.matmul(rows, right, out=product[start + first : start + stop])

            in_pieces(len(block), PIECE, multiply)
        return product

    def transposed_times(self, right: Matrix) -> Matrix:
        """The product of the transposed matrix with one of as many rows as this one has."""
        product = np.zeros((self.shape[1], right.shape[1]), right.dtype)
        for start, block in self.walk():

            def multiply(first: int, stop: int, start: int = start, block: Matrix = block) -> None:
                columns = block[:, first:stop].astype(right.dtype, copy=False)
                product[first:stop] += columns.T @ right[start : start + len(block)]

            in_pieces(self.shape[1], PIECE, multiply)
        return product

    def squared_distance(self, left: Matrix, right: Matrix) -> float:
        """The sum of squares of what ``left @ right`` leaves of the matrix."""
        squares = np.zeros(-(-self.shape[0] // PIECE) + -(-self.shape[0] // self._block_rows))
        piece = 0
        for start, block in self.walk():

            def measure(first: int, stop: int, start: int = start, block: Matrix = block, piece: int = piece) -> None:
                rest = (block[first:stop] - left[start + first : start + stop] @ right).reshape(-1)
                squares[piece + first // PIECE] = sum(float(np.dot(part, part)) for part in _double_pieces(rest))

            in_pieces(len(block), PIECE, measure)
            piece += -(-len(block) // PIECE)
        return math.fsum(squares)


def _row_pieces(block: Matrix) -> Iterator[Doubles]:
    """A block in f64, some rows at a time."""
    return (block[start : start + GRAM_ROWS].astype(np.float64) for start in range(0, len(block), GRAM_ROWS))


def _double_pieces(values: Matrix) -> Iterator[Doubles]:
    """The values in f64, a piece at a time, because f32 would lose digits in long sums."""
    step = 1 << 16
    return (values[start : start + step].astype(np.float64) for start in range(0, values.size, step))


@dataclass(frozen=True, slots=True)
class SingularVectors:
    """The leading part of a singular value decomposition: ``left @ diag(values) @ right``, largest first."""

    left: Doubles
    values: Doubles
    right: Doubles

    def factors(self, rank: int) -> tuple[Doubles, Doubles]:
        """The best product of this rank, its weight shared evenly by both factors."""
        roots = np.sqrt(self.values[:rank])
        return self.left[:, :rank] * roots, roots[:, None] * self.right[:rank]

    def smallest_rank(self, total_squares: float, max_relative_error: float) -> int | None:
        """The smallest rank that leaves at most this share of the matrix's length, or None if more are needed.

        >>> SingularVectors(np.eye(2), np.array([4.0, 3.0]), np.eye(2)).smallest_rank(25.0, 0.6)
        1
        """
        left_over = total_squares - np.cumsum(self.values**2)
        enough = np.flatnonzero(left_over <= max_relative_error**2 * total_squares)
        return int(enough[0]) + 1 if enough.size else None


def leading_singular_vectors(blocks: RowBlocks, count: int, seed: int, stream: str) -> SingularVectors:
    """The ``count`` largest singular values of a matrix with their vectors; fewer if it has fewer.

    >>> import lbrx
    >>> matrix = lbrx.tensor(np.outer([3.0, 4.0], [1.0, 0.0, 0.0]), "f32")
    >>> leading_singular_vectors(RowBlocks(matrix), 1, 0, "w").values
    array([5.])
    """
    rows, columns = blocks.shape
    width = min(count + max(MIN_OVERSAMPLING, count // 4), rows, columns)
    with budget().reserve(8 * 4 * width * (rows + columns), f"the singular vectors of {stream!r}"):
        sketch: Matrix = normal((columns, width), seed, stream).numpy()
        for _ in range(POWER_ITERATIONS if width < min(rows, columns) else 0):
            sketch = blocks.transposed_times(_orthonormal(blocks.times(sketch), np.float32))
            sketch = _orthonormal(sketch, np.float32)
        span = _orthonormal(blocks.times(sketch.astype(np.float64)), np.float64)
        projection = blocks.transposed_times(span)
        with _decomposing(projection):
            right, values, inner = np.linalg.svd(projection, full_matrices=False)
        rank = min(count, width)
        return SingularVectors(span @ inner[:rank].T, values[:rank], right[:, :rank].T)


def vectors_within(
    blocks: RowBlocks, max_relative_error: float, most: int, spare_share: float, stream: str
) -> SingularVectors | None:
    """As many leading singular vectors as leave this share of a matrix's length, and a share of them to spare.

    All singular values are computed at once, from the product of the matrix with itself: for matrices of which many
    are needed, where a sketch would be about as wide as the matrix. There are at most ``most``. None if the memory
    that may be used does not hold that product.

    >>> import lbrx
    >>> matrix = lbrx.tensor(np.diag([4.0, 3.0, 0.5]), "f32")
    >>> vectors_within(RowBlocks(matrix), 0.2, 3, 0.0, "w").values
    array([4., 3.])
    """
    is_wide = blocks.shape[0] < blocks.shape[1]
    tall = blocks.transposed() if is_wide else blocks
    side = tall.shape[1]
    nbytes = 8 * side * (4 * side + 2 * sum(tall.shape))
    if nbytes > budget().limit_bytes:
        return None
    with budget().reserve(nbytes, f"the singular vectors of {stream!r}"):
        product = tall.gram()
        with _decomposing(product):
            squares, vectors = np.linalg.eigh(product)
        squares, vectors = np.maximum(squares[::-1], 0), vectors[:, ::-1]
        left_over = np.append(np.cumsum(squares[::-1])[::-1][1:], 0)
        rank = int(np.argmax(left_over <= max_relative_error**2 * squares.sum())) + 1
        count = min(rank + math.ceil(spare_share * rank), most, max(int(np.count_nonzero(squares)), 1))
        values, right = np.sqrt(squares[:count]), np.ascontiguousarray(vectors[:, :count])
        left = tall.times(right) / np.where(values > 0, values, 1)
        return SingularVectors(right, values, left.T) if is_wide else SingularVectors(left, values, right.T)


def _orthonormal(matrix: Matrix, dtype: type[np.float32] | type[np.float64]) -> Matrix:
    with _decomposing(matrix):
        span: Matrix = np.linalg.qr(matrix.astype(np.float64, copy=False))[0]
    return span.astype(dtype, copy=False)


def _decomposing(matrix: Matrix) -> AbstractContextManager[None]:
    return one_blas_thread() if matrix.shape[1] <= MAX_WIDTH_ON_ONE_THREAD else all_blas_threads()
