"""Masks of the elements of a delta that are kept. None means all, as with a density of 1."""

from __future__ import annotations

from lbrx.jobs.merge.methods.method import MergeContext
from lbrx.memory import budget
from lbrx.tensors.expr import Stored
from lbrx.tensors.shape import Layout
from lbrx.tensors.tensor import Tensor

MOST_STORED_BYTES = 48 << 20  # of all masks of a tensor, one byte an element


def largest(delta: Tensor, density: float) -> Tensor | None:
    """The share ``density`` of largest magnitude: exactly ``floor(density * size)`` elements, and at least one.

    >>> from lbrx import tensor
    >>> largest(tensor([1.0, -3.0, 3.0, 2.0]), 0.5).numpy()
    array([False,  True,  True, False])
    """
    if density >= 1:
        return None
    return abs(delta).top_k_mask(max(1, int(density * delta.size)))


def below_outliers(delta: Tensor, density: float, gamma: float) -> Tensor | None:
    """The largest ``floor(density * size)`` elements but for the share ``gamma`` of outliers above them.

    Where fewer elements than that are left, fewer outliers are dropped.

    >>> from lbrx import tensor
    >>> below_outliers(tensor([1.0, -4.0, 3.0, 2.0]), density=0.5, gamma=0.25).numpy()
    array([False, False,  True,  True])
    """
    if density >= 1:
        return None
    kept = int(density * delta.size)
    dropped = min(int(gamma * delta.size), delta.size - kept)
    magnitude = abs(delta)
    return magnitude.top_k_mask(dropped + kept) & ~magnitude.top_k_mask(dropped)


def random_share(delta: Tensor, density: float, context: MergeContext, model: int) -> Tensor | None:
    """Each element with probability ``density``."""
    if density >= 1:
        return None
    return context.uniform(delta.shape, model) < density


def random_by_rank(delta: Tensor, density: float, epsilon: float, context: MergeContext, model: int) -> Tensor | None:
    """Each element with a probability that grows with its magnitude's rank in its row.

    It goes from ``density - epsilon`` to ``density + epsilon``; a density of 0 keeps nothing.
    """
    if density >= 1:
        return None
    columns = delta.shape[-1]
    spread = epsilon if density > 0 and columns > 1 else 0.0
    probability = abs(delta).rank().to("f32") * (2 * spread / max(columns - 1, 1)) + (density - spread)
    return context.uniform(delta.shape, model) < probability


def stored(mask: Tensor, masks: int) -> Tensor:
    """A mask that is put into memory when a pass finds it, for the passes after that; ``masks``: of how many.

    Where they would be large together, the mask is found again instead.
    """
    if mask.size * masks > min(MOST_STORED_BYTES, budget().limit_bytes // 4):
        return mask
    return Tensor(Stored(mask.expr, Layout.contiguous(mask.shape)))
