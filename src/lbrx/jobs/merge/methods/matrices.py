"""Matrices of task vectors, for methods that decompose them.

A decomposition needs the whole matrix of every model in memory, in f64. Embeddings and language heads are therefore
averaged, as are vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from lbrx.engine.blas import one_blas_thread
from lbrx.jobs.merge.methods.method import MergeContext
from lbrx.jobs.merge.methods.task_vectors import differences, total
from lbrx.tensors.tensor import Tensor
from lbrx.tensors.tensor import tensor as new_tensor

Matrix = npt.NDArray[np.float64]


def merged_matrices(
    base: Tensor,
    models: Sequence[Tensor],
    weight: Sequence[float],
    context: MergeContext,
    combine: Callable[[list[Matrix]], Matrix],
) -> Tensor:
    """The base and what ``combine`` makes of the weighted differences, if the tensor is a matrix of a layer.

    Other tensors get the mean of the weighted differences. The result does not depend on threads.
    """
    scaled = [delta * share for delta, share in zip(differences(base, models), weight, strict=True)]
    if len(base.shape) != 2 or min(base.shape) < 2 or context.is_vocabulary:
        return base + total(scaled) / len(models)
    arrays = [each.numpy().astype(np.float64) for each in scaled]
    if not all(np.isfinite(array).all() for array in arrays):
        return base + total(scaled)  # NaN and infinities stay visible
    with one_blas_thread():
        change = combine(arrays)
    return base + new_tensor(change.astype(np.float32))


def decomposed(matrix: Matrix) -> tuple[Matrix, Matrix, Matrix]:
    """The singular value decomposition U, s, V', with signs that do not depend on the library."""
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    signs = np.sign(left[np.abs(left).argmax(axis=0), np.arange(left.shape[1])])
    signs[signs == 0] = 1.0
    return left * signs, values, right * signs[:, None]


def nearest_orthogonal(matrix: Matrix) -> Matrix:
    """The matrix with orthonormal columns (or rows) that is nearest to a matrix."""
    left, _, right = np.linalg.svd(matrix, full_matrices=False)
    product: Matrix = left @ right
    return product
