"""KnOTS: the changes of several adapters in common directions, so that they can be merged element by element.

The changes [D1 ... Dn], side by side, are decomposed into U S [V1 ... Vn]. The matrices V of all adapters have the same
meaning row by row. They are merged, and multiplied with U S. No change is computed as a whole: the decomposition is
that of a matrix with as many rows and columns as the ranks add up to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from lbrx.base.fast_dataclass import dataclass
from lbrx.engine.blas import one_blas_thread
from lbrx.jobs.lora.svd import Doubles
from lbrx.memory import budget
from lbrx.tensors.tensor import Tensor
from lbrx.tensors.tensor import tensor as new_tensor

_LEAST_VALUE = 1e-6  # of singular values, relative to the largest: what is below is rounding


@dataclass(frozen=True, eq=False)
class CommonDirections:
    """Orthonormal columns, their singular values, and for each adapter a row per column."""

    left: Doubles
    values: Doubles
    rights: tuple[Doubles, ...]


def common_directions(factors: Sequence[tuple[Doubles, Doubles]]) -> CommonDirections:
    """Decompose the products B A of pairs (B, A), side by side.

    >>> b, a = np.array([[2.0], [0.0]]), np.array([[0.0, 1.0, 0.0]])
    >>> common_directions([(b, a), (b, 2 * a)]).values.round(3)
    array([4.472])
    """
    left, inner = np.linalg.qr(np.hstack([b for b, _ in factors]))
    outer = [np.linalg.qr(a.T) for _, a in factors]
    ends = np.cumsum([b.shape[1] for b, _ in factors])[:-1]
    parts = [own @ r.T for own, (_, r) in zip(np.split(inner, ends, axis=1), outer, strict=True)]
    directions, values, right = np.linalg.svd(np.hstack(parts), full_matrices=False)
    count = max(int((values > _LEAST_VALUE * values[0]).sum()), 1)
    ends = np.cumsum([part.shape[1] for part in parts])[:-1]
    own_rights = np.split(right[:count], ends, axis=1)
    rights = tuple(own @ q.T for own, (q, _) in zip(own_rights, outer, strict=True))
    return CommonDirections(left @ directions[:, :count], values[:count], rights)


def merged_in_common_directions(
    factors: Sequence[tuple[Tensor, Tensor, float]],
    merge: Callable[[list[Tensor]], Tensor],
    rank: int | None,
    stream: str,
) -> tuple[Doubles, Doubles]:
    """Return the factors B and A of what ``merge`` makes of the adapters' parts of the common directions.

    ``factors`` have B, A and a scale. The result is exact without a ``rank``.
    """
    total = sum(a.shape[0] for _, a, _ in factors)
    with budget().reserve(8 * 4 * total * sum(factors[0][0].shape[:1] + factors[0][1].shape[1:]), f"{stream!r}"):
        arrays = [(b.numpy().astype(np.float64), a.numpy().astype(np.float64) * scale) for b, a, scale in factors]
        with one_blas_thread():
            common = common_directions(arrays)
        merged = merge([new_tensor(right.astype(np.float32)) for right in common.rights]).numpy()
        with one_blas_thread():
            inner, values, right = np.linalg.svd(common.values[:, None] * merged, full_matrices=False)
            roots = np.sqrt(values[:rank])
            left: Doubles = common.left @ inner[:, :rank] * roots
        return left, roots[:, None] * right[:rank]
