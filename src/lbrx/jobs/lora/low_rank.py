"""Products of two thin matrices, computed in blocks of rows by the pass that adds them to a weight."""

from __future__ import annotations

from lbrx.errors import ShapeError
from lbrx.tensors.expr import MatMul
from lbrx.tensors.shape import Shape
from lbrx.tensors.tensor import Tensor

BLOCK_ROWS = 32  # results depend on it: BLAS may round a row differently when it is multiplied together with others


def matrix_factor(tensor: Tensor) -> Tensor:
    """A tensor as a matrix: its first axis are rows, all others together columns.

    >>> import lbrx
    >>> matrix_factor(lbrx.full((2, 3, 1, 1), 1, "bf16")).shape
    (2, 3)
    """
    if tensor.ndim < 2 or not tensor.dtype.is_float:
        raise ShapeError(f"a factor is a matrix of floats, not {tensor.dtype} of shape {tensor.shape}")
    return tensor if tensor.ndim == 2 else tensor.reshape(tensor.shape[0], -1)


def low_rank_product(left: Tensor, right: Tensor, shape: Shape) -> Tensor:
    """``left @ right`` as an f32 tensor of a shape with equally many elements; nothing is computed yet.

    >>> import lbrx
    >>> left, right = (lbrx.tensor(values, "f32") for values in ([[1], [2]], [[3, 4]]))
    >>> low_rank_product(left, right, (2, 2)).numpy()
    array([[3., 4.],
           [6., 8.]], dtype=float32)
    """
    return Tensor(MatMul(left.expr, right.expr, block_rows=BLOCK_ROWS)).reshape(shape)
