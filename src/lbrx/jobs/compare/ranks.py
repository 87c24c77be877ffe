"""In how few directions a fine-tune changed its matrices, from a few small ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from lbrx.base.fast_dataclass import dataclass
from lbrx.engine.blas import one_blas_thread
from lbrx.jobs.compare.diff import ModelDiff, TensorDiff
from lbrx.tensors.tensor import Tensor

SHARE = 0.95  # of the squared change
_LEAST_SIZE = 16  # of the shorter side of a matrix
_MOST_ELEMENTS = 32 << 20


@dataclass(frozen=True, slots=True)
class ChangeRank:
    """How many of ``size`` directions have `SHARE` of a squared change, at most in some layers of a module.

    ``of`` is A or B for the changes of a base, else "difference".
    """

    of: str
    module: str
    layers: tuple[int, ...]
    directions: int
    size: int


def change_ranks(
    difference: ModelDiff, a: Mapping[str, Tensor], b: Mapping[str, Tensor], base: Mapping[str, Tensor] | None
) -> tuple[ChangeRank, ...]:
    """Decompose the changes of the smallest kind of matrix, in the first, the middle and the last layer.

    >>> import lbrx
    >>> from lbrx.jobs.compare.diff import diff_models
    >>> name, base = "model.layers.0.q.weight", lbrx.normal((32, 32), 1)
    >>> a, b = {name: base}, {name: base + lbrx.normal((32, 1), 2) * lbrx.normal((1, 32), 3)}
    >>> change_ranks(diff_models(a, b), a, b, None)
    (ChangeRank(of='difference', module='q', layers=(0,), directions=1, size=32),)
    """
    chosen = _chosen(difference)
    pairs = [("difference", b, a)] if base is None else [("A", a, base), ("B", b, base)]
    return tuple(rank for of, one, origin in pairs for rank in _ranks(of, one, origin, chosen))


def _chosen(difference: ModelDiff) -> list[TensorDiff]:
    lacking = set(difference.without_base)
    matrices = [
        each
        for each in difference.tensors
        if each.position.layer is not None
        and len(each.shape) == 2
        and min(each.shape) >= _LEAST_SIZE
        and each.shape[0] * each.shape[1] <= _MOST_ELEMENTS
        and "*" not in each.position.module  # experts
        and each.name not in lacking
    ]
    if not matrices:
        return []
    smallest = min(matrices, key=lambda each: each.shape[0] * each.shape[1])
    alike = [each for each in matrices if each.position._replace(layer=0) == smallest.position._replace(layer=0)]
    alike = sorted((each for each in alike if each.shape == smallest.shape), key=lambda each: each.position.layer or 0)
    return [alike[number] for number in sorted({0, len(alike) // 2, len(alike) - 1})]


def _ranks(
    of: str, one: Mapping[str, Tensor], origin: Mapping[str, Tensor], chosen: Sequence[TensorDiff]
) -> Iterator[ChangeRank]:
    found = [(each.position.layer or 0, _directions(one[each.name], origin[each.name])) for each in chosen]
    changed = [(layer, count) for layer, count in found if count]
    if changed:
        first = chosen[0]
        layers = tuple(layer for layer, _ in changed)
        yield ChangeRank(of, first.position.module, layers, max(count for _, count in changed), min(first.shape))


def _directions(one: Tensor, origin: Tensor) -> int:
    """How many directions have most of a change; 0 if there is none, or if it is not finite."""
    change = (one.dequantize().to("f32") - origin.dequantize().to("f32")).numpy().astype(np.float64)
    if not change.any() or not np.isfinite(change).all():
        return 0
    with one_blas_thread():
        product = change @ change.T if change.shape[0] <= change.shape[1] else change.T @ change
        squares = np.maximum(np.linalg.eigvalsh(product)[::-1], 0.0)
    return int(np.searchsorted(np.cumsum(squares), SHARE * squares.sum())) + 1
