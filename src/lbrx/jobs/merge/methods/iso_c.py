"""Isotropic merging (Iso-C): all directions of the summed task vectors get the same weight."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lbrx.jobs.merge.methods.matrices import Matrix, merged_matrices, nearest_orthogonal
from lbrx.jobs.merge.methods.method import MergeContext
from lbrx.tensors.tensor import Tensor


def iso_c(
    base: Tensor, models: Sequence[Tensor], *, weight: Sequence[float], lambda_: float = 1.0, context: MergeContext
) -> Tensor:
    """The base and the sum of the differences from it, with the mean of its singular values in the place of each.

    Embeddings, language heads and tensors other than matrices get the mean of the differences. Needs memory for whole
    matrices.

    >>> from lbrx import tensor
    >>> base, model = tensor([[0.0, 0.0], [0.0, 0.0]]), tensor([[3.0, 0.0], [0.0, 1.0]])
    >>> iso_c(base, [model], weight=[1.0], context=MergeContext("w")).numpy()
    array([[2., 0.],
           [0., 2.]])
    """

    def flattened(deltas: list[Matrix]) -> Matrix:
        whole = np.sum(deltas, axis=0)
        values = np.linalg.svd(whole, compute_uv=False)
        merged: Matrix = lambda_ * values.mean() * nearest_orthogonal(whole)
        return merged

    return merged_matrices(base, models, weight, context, flattened)
