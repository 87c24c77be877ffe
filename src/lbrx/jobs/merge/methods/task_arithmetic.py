"""Task arithmetic and its sparse variants: the base plus the differences ("deltas") of models from it.

A method chooses the elements of each delta (all, the largest, random ones, ...), and how deltas are added: all of
them, or those that have the sign of their weighted sum, as in TIES. Masks are multiplied, not chosen by: a NaN that a
mask drops stays a NaN instead of vanishing.

>>> from lbrx import tensor
>>> base, models = tensor([0.0, 0.0, 0.0]), [tensor([9.0, 3.0, 1.0]), tensor([-1.0, -2.0, -8.0])]
>>> task_arithmetic(base, models, weight=[1.0, 0.5]).numpy()
array([ 8.5,  2. , -3. ])
>>> ties(base, models, weight=[1.0, 1.0], density=[0.7, 1.0]).numpy()
array([ 9.,  3., -8.])
>>> breadcrumbs(base, models, weight=[1.0, 1.0], density=[0.4, 0.7], gamma=[0.4, 0.0]).numpy()
array([ 0.,  1., -8.])
>>> breadcrumbs_ties(base, models, weight=[1.0, 1.0], density=[0.4, 0.7], gamma=[0.4, 0.0]).numpy()
array([ 0.,  3., -8.])
>>> parameters = {"context": MergeContext("w"), "weight": [1.0, 1.0], "density": [1.0, 1.0]}
>>> dare_linear(base, models, **parameters).numpy(), dare_ties(base, models, **parameters).numpy()
(array([ 8.,  1., -7.]), array([ 9.,  3., -8.]))
>>> parameters["epsilon"] = [0.1, 0.1]
>>> della_linear(base, models, **parameters).numpy(), della(base, models, **parameters).numpy()
(array([ 8.,  1., -7.]), array([ 9.,  3., -8.]))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Annotated, Any

from lbrx.jobs.merge.methods.method import MergeContext
from lbrx.jobs.merge.methods.parameters import NO_EFFECT, Limits, TensorParameters, Violation
from lbrx.jobs.merge.methods.sparsify import below_outliers, largest, random_by_rank, random_share, stored
from lbrx.jobs.merge.methods.task_vectors import differences, sign_agreement, total, weighted_sum
from lbrx.tensors.creation import where
from lbrx.tensors.tensor import Tensor

PerModel = Sequence[float]
Share = Annotated[PerModel, Limits(0, 1)]
_LEAST_WEIGHT_SUM = 1e-8
_LEAST_L1_NORM = 1e-7


def masked(delta: Tensor, mask: Tensor | None, rescale: bool, *, random_masks: int = 0) -> Tensor:
    """A delta where the mask is true, else 0; everything if there is no mask.

    ``rescale`` gives the result the L1 norm that the delta had, unless one of the two is about zero. That takes a
    second pass: a random mask, which is slow to make, is kept for it. ``random_masks``: how many are kept at once.

    >>> from lbrx import tensor
    >>> delta = tensor([1.0, -2.0, 3.0])
    >>> masked(delta, abs(delta) > 1, rescale=True).numpy()
    array([ 0. , -2.4,  3.6])
    """
    if mask is None:
        return delta
    if not rescale:
        return delta * mask
    before, after = abs(delta).sum(), abs(delta * mask).sum()
    is_empty = (before < _LEAST_L1_NORM) | (after < _LEAST_L1_NORM)
    return delta * (stored(mask, random_masks) if random_masks else mask) * where(is_empty, 1.0, before / after)


def add_weighted(
    base: Tensor, deltas: Sequence[Tensor], weight: PerModel, *, normalize: bool, lambda_: float
) -> Tensor:
    """The base plus the weighted sum of the deltas, divided by the sum of the weights if ``normalize``.

    >>> from lbrx import tensor
    >>> base, deltas = tensor([1.0]), [tensor([4.0]), tensor([8.0])]
    >>> add_weighted(base, deltas, [1.0, 3.0], normalize=True, lambda_=0.5).numpy()
    array([4.5])
    """
    merged = weighted_sum(deltas, weight)
    weight_sum = sum(weight)
    if normalize and abs(weight_sum) >= _LEAST_WEIGHT_SUM:
        merged = merged / weight_sum
    return base + merged * lambda_


def add_agreeing(
    base: Tensor, deltas: Sequence[Tensor], weight: PerModel, *, normalize: bool, lambda_: float
) -> Tensor:
    """The base plus the sum of the weighted deltas that have the sign of the sum of all of them.

    ``normalize`` divides every element by the sum of the weights that went into it.

    >>> from lbrx import tensor
    >>> base, deltas = tensor([0.0, 0.0]), [tensor([4.0, 1.0]), tensor([-1.0, 2.0])]
    >>> add_agreeing(base, deltas, [2.0, 1.0], normalize=True, lambda_=1.0).numpy()
    array([4.        , 1.33333333])
    """
    weighted = [delta * value for delta, value in zip(deltas, weight, strict=True)]
    agreeing = [agrees.to(weighted[0].dtype) for agrees in sign_agreement(weighted)]
    merged = weighted_sum(weighted, agreeing)
    if normalize:
        divisor = total([agrees * value for agrees, value in zip(agreeing, weight, strict=True)])
        merged = merged / where(divisor == 0, 1.0, divisor)
    return base + merged * lambda_


def _all(
    base: Tensor,
    models: Sequence[Tensor],
    *,
    density: Annotated[Share, NO_EFFECT] = (1.0,),  # noqa: ARG001
    rescale: Annotated[bool, NO_EFFECT] = False,  # noqa: ARG001
) -> list[Tensor]:
    """Differences are taken as they are."""
    return differences(base, models)


def _largest(base: Tensor, models: Sequence[Tensor], *, density: Share = (1.0,), rescale: bool = False) -> list[Tensor]:
    """Only the largest elements of differences are kept."""
    shares = zip(differences(base, models), density, strict=True)
    return [masked(delta, largest(delta, share), rescale) for delta, share in shares]


def _random(
    base: Tensor, models: Sequence[Tensor], *, context: MergeContext, density: Share = (1.0,), rescale: bool = True
) -> list[Tensor]:
    """Elements of differences are kept at random."""
    return [
        masked(delta, random_share(delta, share, context, model), rescale, random_masks=len(models))
        for model, (delta, share) in enumerate(zip(differences(base, models), density, strict=True))
    ]


def _spread_fits(parameters: TensorParameters) -> Violation | None:
    """Probabilities from density - epsilon to density + epsilon have to be strictly between 0 and 1."""
    for index, values in enumerate(parameters.per_model):
        if values is None:
            continue
        density, epsilon = float(values["density"] or 0), float(values["epsilon"] or 0)
        if 0 < density < 1 and not (density - epsilon > 0 and density + epsilon < 1):
            return Violation(
                f"'epsilon' {epsilon:g} is too large for 'density' {density:g}; "
                f"expected density - epsilon above 0 and density + epsilon below 1",
                index,
            )
    return None


def _random_by_rank(
    base: Tensor,
    models: Sequence[Tensor],
    *,
    context: MergeContext,
    density: Share = (1.0,),
    epsilon: Annotated[Share, _spread_fits] = (0.15,),
    rescale: bool = True,
) -> list[Tensor]:
    """Elements of differences are kept at random, favouring large ones."""
    shares = zip(differences(base, models), density, epsilon, strict=True)
    return [
        masked(delta, random_by_rank(delta, share, spread, context, model), rescale, random_masks=len(models))
        for model, (delta, share, spread) in enumerate(shares)
    ]


def _below_outliers(
    base: Tensor, models: Sequence[Tensor], *, density: Share = (1.0,), gamma: Share = (0.01,), rescale: bool = False
) -> list[Tensor]:
    """The smallest elements of differences and outliers are dropped."""
    shares = zip(differences(base, models), density, gamma, strict=True)
    return [masked(delta, below_outliers(delta, share, outliers), rescale) for delta, share, outliers in shares]


def _method(sparse: Callable[..., list[Tensor]], add: Callable[..., Tensor], normalized: bool) -> Callable[..., Tensor]:
    """The method that adds sparse deltas: its signature has the parameters of both, and ``normalize`` a default."""

    def merge(
        base: Tensor,
        models: Sequence[Tensor],
        *,
        weight: PerModel,
        normalize: bool = normalized,
        lambda_: float = 1.0,
        int8_mask: bool = False,  # noqa: ARG001
        **sparse_parameters: Any,
    ) -> Tensor:
        deltas = sparse(base, models, **sparse_parameters)
        return add(base, deltas, weight, normalize=normalize, lambda_=lambda_)

    own, parameters = signature(merge), dict(signature(merge).parameters)
    del parameters["sparse_parameters"]
    parameters |= {name: value for name, value in signature(sparse).parameters.items() if name not in parameters}
    merge.__signature__ = own.replace(parameters=list(parameters.values()))  # type: ignore[attr-defined]
    merge.__annotations__ = sparse.__annotations__ | merge.__annotations__
    merge.__doc__ = " ".join((each.__doc__ or "").split("\n\n")[0].strip() for each in (add, sparse))
    return merge


task_arithmetic = _method(_all, add_weighted, normalized=False)
ties = _method(_largest, add_agreeing, normalized=True)
dare_linear = _method(_random, add_weighted, normalized=False)
dare_ties = _method(_random, add_agreeing, normalized=False)
della_linear = _method(_random_by_rank, add_weighted, normalized=False)
della = _method(_random_by_rank, add_agreeing, normalized=True)
breadcrumbs = _method(_below_outliers, add_weighted, normalized=False)
breadcrumbs_ties = _method(_below_outliers, add_agreeing, normalized=False)
