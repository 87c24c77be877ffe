"""Statistics of an importance matrix: which tensors are used evenly, and which by a few columns."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import numpy as np

from lbrx.base.fast_dataclass import dataclass
from lbrx.jobs.imatrix.files import Importance, Sums

_INACTIVE = 1e-5
_LAYER = re.compile(r"blk\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class TensorStatistics:
    """Statistics of the mean squares of the columns of a tensor.

    ``active`` is the share above 1e-5. ``entropy`` is in bits, and ``evenness`` its share of the largest possible.
    ``above`` is the share of columns more than a standard deviation above the mean. ``similarity`` is the cosine to the
    same tensor of the layer before. ``unused`` counts the matrices without activations.
    """

    name: str
    total: float
    least: float
    most: float
    mean: float
    deviation: float
    active: float
    columns: int
    entropy: float
    evenness: float
    above: float
    similarity: float | None
    unused: int


def statistics(entries: Mapping[str, Sums]) -> list[TensorStatistics]:
    """The statistics of all tensors, those with the largest sums first.

    >>> even = Sums(np.full((1, 4), 6.0), np.array([3.0]))
    >>> row = statistics({"blk.0.ffn_up.weight": even})[0]
    >>> row.total, row.entropy, row.evenness
    (8.0, 2.0, 1.0)
    """
    rows = [_of(name, sums, _before(entries, name)) for name, sums in entries.items() if sums.counts.any()]
    return sorted(rows, key=lambda row: (-row.total, row.name))


def _used(sums: Sums) -> Importance:
    counts = sums.counts[:, None]
    return (sums.squares / np.where(counts > 0, counts, 1.0))[sums.counts > 0].reshape(-1).astype(np.float32)


def _before(entries: Mapping[str, Sums], name: str) -> Sums | None:
    match = _LAYER.match(name)
    return entries.get(f"blk.{int(match[1]) - 1}.{name[match.end() :]}") if match else None


def _of(name: str, sums: Sums, before: Sums | None) -> TensorStatistics:
    values = _used(sums).astype(np.float64)
    total, mean, deviation = float(values.sum()), float(values.mean()), float(values.std())
    shares = values[values > 0] / total if total > 0 else values[:0]
    entropy = float(-(shares * np.log2(shares)).sum())
    return TensorStatistics(
        name,
        total,
        float(values.min()),
        float(values.max()),
        mean,
        deviation,
        float((values > _INACTIVE).mean()),
        values.size,
        entropy,
        entropy / math.log2(values.size) if values.size > 1 else 1.0,
        float(((values - mean) > deviation).mean()) if deviation > 0 else 0.0,
        _cosine(sums, before),
        int((sums.counts == 0).sum()),
    )


def _cosine(sums: Sums, before: Sums | None) -> float | None:
    if before is None or before.squares.size != sums.squares.size:
        return None
    first, second = sums.squares.reshape(-1), before.squares.reshape(-1)
    lengths = float(np.linalg.norm(first) * np.linalg.norm(second))
    return float(first @ second) / lengths if lengths else None
