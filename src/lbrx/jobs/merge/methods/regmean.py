"""RegMean: the matrix whose outputs are nearest to those of every model on its own inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np

from lbrx.engine.blas import one_blas_thread
from lbrx.errors import UsageError
from lbrx.jobs.merge.methods.matrices import Matrix
from lbrx.jobs.merge.methods.method import MergeContext
from lbrx.jobs.merge.methods.parameters import INPUT_TEXT, Limits, TensorParameters, Violation
from lbrx.jobs.merge.methods.task_vectors import weighted_sum
from lbrx.tensors.tensor import Tensor
from lbrx.tensors.tensor import tensor as new_tensor


def _some_weight(parameters: TensorParameters) -> Violation | None:
    has_weight = any(parameters.across_models("weight"))
    return None if has_weight else Violation("all weights are 0; expected one above 0")


def regmean(
    models: Sequence[Tensor],
    base: Tensor | None = None,  # noqa: ARG001 - a recipe may name one for config and tokenizer
    *,
    text: Annotated[Sequence[str], INPUT_TEXT],  # noqa: ARG001 - the models are run before this is called
    weight: Annotated[Sequence[float], Limits(0), _some_weight] = (1.0,),
    off_diagonal: Annotated[float, Limits(0, 1)] = 0.9,
    ridge: Annotated[float, Limits(0)] = 1e-6,
    max_tokens: Annotated[int, Limits(2)] = 8192,  # noqa: ARG001
    context: MergeContext,
) -> Tensor:
    """The matrix whose outputs are nearest to those of each model, on the inputs that its text gives to that model.

    With G the mean of x x' over the inputs x of a model, the result is the sum of W G times the inverse of the sum of
    G. ``off_diagonal`` is a factor for the elements of G beside the diagonal; 0 weights each column on its own.
    ``ridge`` is relative to the mean of the diagonal. A base is not merged. Embeddings, heads and tensors that are not
    matrices of linear layers get the weighted mean. Needs memory for whole matrices.

    >>> from lbrx import tensor
    >>> from lbrx.jobs.merge.methods.parameters import InputGram
    >>> grams = [InputGram(np.diag([3.0, 1.0])), InputGram(np.diag([1.0, 1.0]))]
    >>> context = MergeContext("w", grams=grams.__getitem__)
    >>> models = [tensor([[1.0, 1.0]]), tensor([[0.0, 0.0]])]
    >>> regmean(models, text=["", ""], weight=[1.0, 1.0], ridge=0.0, context=context).numpy()
    array([[0.75, 0.5 ]], dtype=float32)
    """
    mean = weighted_sum(models, [share / sum(weight) for share in weight])
    if len(models[0].shape) != 2:
        return mean
    total = target = None
    axis = 1
    for number, (model, share) in enumerate(zip(models, weight, strict=True)):
        gram = context.gram(number)
        if gram is None:
            return mean
        axis, values = gram.axis, model.numpy().astype(np.float64)
        if not np.isfinite(values).all():
            return mean  # NaN and infinities stay visible
        with one_blas_thread():
            own = _adjusted(gram.mean, off_diagonal, ridge)
            own *= share
            product = (values if axis == 1 else values.T) @ own
        total = own if total is None else np.add(total, own, out=total)
        target = product if target is None else np.add(target, product, out=target)
    assert total is not None
    assert target is not None
    with one_blas_thread():
        merged = _solved(total, target, context.tensor_name).astype(np.float32)
    return new_tensor(np.ascontiguousarray(merged if axis == 1 else merged.T))


def _adjusted(gram: Matrix, off_diagonal: float, ridge: float) -> Matrix:
    """A Gram matrix with smaller elements beside the diagonal and a larger diagonal."""
    adjusted: Matrix = gram * off_diagonal
    diagonal = gram.diagonal()
    adjusted[np.diag_indices_from(gram)] = diagonal + ridge * (float(diagonal.mean()) or 1.0)
    return adjusted


def _solved(total: Matrix, target: Matrix, name: str) -> Matrix:
    """The matrix X with X total = target; ``total`` is symmetric."""
    try:
        solved: Matrix = np.linalg.solve(total, target.T).T.astype(np.float64, copy=False)
    except np.linalg.LinAlgError as error:
        raise UsageError(
            f"regmean: the inputs of {name!r} do not determine it; expected a ridge above 0, or longer texts"
        ) from error
    return solved
