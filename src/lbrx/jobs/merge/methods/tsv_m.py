"""Task singular vectors (TSV-M): the leading directions of every task, made independent of each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lbrx.jobs.merge.methods.matrices import Matrix, decomposed, merged_matrices, nearest_orthogonal
from lbrx.jobs.merge.methods.method import MergeContext
from lbrx.tensors.tensor import Tensor


def tsv_m(
    base: Tensor, models: Sequence[Tensor], *, weight: Sequence[float], lambda_: float = 1.0, context: MergeContext
) -> Tensor:
    """The base and the leading singular directions of every difference from it, after making them orthogonal.

    Each of n models keeps 1/n of its directions. Embeddings, language heads and tensors other than matrices get the
    mean of the differences. Needs memory for whole matrices.

    >>> from lbrx import tensor
    >>> base, model = tensor([[0.0, 0.0], [0.0, 0.0]]), tensor([[3.0, 0.0], [0.0, 1.0]])
    >>> tsv_m(base, [model], weight=[1.0], context=MergeContext("w")).numpy().round(6)
    array([[3., 0.],
           [0., 1.]])
    """

    def independent(deltas: list[Matrix]) -> Matrix:
        kept = max(min(deltas[0].shape) // len(deltas), 1)
        parts = [decomposed(delta) for delta in deltas]
        left = nearest_orthogonal(np.hstack([left[:, :kept] for left, _, _ in parts]))
        right = nearest_orthogonal(np.vstack([right[:kept] for _, _, right in parts]))
        values = np.concatenate([values[:kept] for _, values, _ in parts])
        merged: Matrix = lambda_ * (left * values) @ right
        return merged

    return merged_matrices(base, models, weight, context, independent)
