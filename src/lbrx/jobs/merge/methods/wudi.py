"""WUDI: the merged task vector that interferes least with the inputs of every task, in closed form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np

from lbrx.jobs.merge.methods.matrices import Matrix, merged_matrices
from lbrx.jobs.merge.methods.method import MergeContext
from lbrx.jobs.merge.methods.parameters import Limits
from lbrx.tensors.tensor import Tensor


def wudi(
    base: Tensor,
    models: Sequence[Tensor],
    *,
    weight: Sequence[float],
    ridge: Annotated[float, Limits(0)] = 0.1,
    lambda_: float = 1.0,
    context: MergeContext,
) -> Tensor:
    """The base and the matrix T with the least sum of ``||(T - D) D'||^2 / ||D||^2`` over the differences D from it.

    The rows of a difference represent the inputs of its task. ``ridge`` draws T to the base; it is
    relative to the mean of the diagonal. Without it, T can be many times as large as the differences.
    Embeddings, language heads and tensors other than matrices get the mean of the differences. Needs memory for
    whole matrices.

    >>> from lbrx import tensor
    >>> base, models = tensor([[0.0, 0.0]] * 2), [tensor([[4.0, 0.0], [0.0, 0.0]]), tensor([[0.0, 0.0], [0.0, 2.0]])]
    >>> wudi(base, models, weight=[1.0, 1.0], ridge=0.0, context=MergeContext("w")).numpy()
    array([[4., 0.],
           [0., 2.]])
    """

    def least_interference(deltas: list[Matrix]) -> Matrix:
        columns = deltas[0].shape[1]
        gram, target = np.zeros((columns, columns)), np.zeros_like(deltas[0])
        for delta in deltas:
            size = float((delta * delta).sum())
            if size == 0.0:
                continue
            own = delta.T @ delta / size
            gram += own
            target += delta @ own
        gram += ridge * np.trace(gram) / columns * np.eye(columns)
        merged: Matrix = lambda_ * np.linalg.lstsq(gram.T, target.T, rcond=None)[0].T.astype(np.float64)
        return merged

    return merged_matrices(base, models, weight, context, least_interference)
