"""What a comparison of two models tells."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from lbrx.base.fast_dataclass import dataclass
from lbrx.jobs.compare.diff import ModelDiff, TensorDiff
from lbrx.ops.difference import Sums

BLOCK_ELEMENTS = 256


class BlockError(NamedTuple):
    """A run of up to 256 elements of a row; axes before the last are counted as one.

    ``relative`` is the length of the difference, over that of an average block of A.
    """

    row: int
    first: int
    end: int
    relative: float

    def __str__(self) -> str:
        return f"[{self.row}, {self.first}:{self.end}]"


@dataclass(frozen=True, slots=True)
class TensorError:
    """One tensor of both models: A is what B should be."""

    diff: TensorDiff
    type_a: str
    type_b: str
    worst_blocks: tuple[BlockError, ...]

    @property
    def name(self) -> str:
        return self.diff.name

    @property
    def relative_error(self) -> float:
        return self.diff.sums.relative_change

    @property
    def decibels(self) -> float:
        return signal_to_noise(self.diff.sums)


def signal_to_noise(sums: Sums) -> float:
    """``20 log10(||a|| / ||a - b||)``: infinite if nothing differs.

    >>> signal_to_noise(Sums(1, squares_a=100.0, squares_difference=1.0))
    20.0
    """
    error = sums.relative_change
    if error == 0:
        return math.inf
    return math.nan if math.isnan(error) else -20 * math.log10(error) if math.isfinite(error) else -math.inf


@dataclass(frozen=True, slots=True)
class Comparison:
    """All tensors that were compared, the worst first, and all that could not be."""

    tensors: tuple[TensorError, ...]
    models: ModelDiff

    @property
    def total(self) -> Sums:
        return self.models.total

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: the tensors, the worst first."""
        from lbrx.tensors.display import table_html

        rows = [
            (tensor.name, tensor.type_a, tensor.type_b, f"{tensor.diff.sums.relative_change:.4g}")
            for tensor in self.tensors
        ]
        caption = f"{len(self.tensors):,} tensors, relative error {self.total.relative_change:.4g}"
        return table_html(caption, ("name", "A", "B", "relative error"), rows)

    def by_types(self) -> dict[tuple[str, str], tuple[int, Sums]]:
        """How many tensors went from one type to another, and what that changed; the worst first."""
        totals: dict[tuple[str, str], tuple[int, Sums]] = {}
        for tensor in self.tensors:
            key = (tensor.type_a, tensor.type_b)
            count, sums = totals.get(key, (0, Sums()))
            totals[key] = (count + 1, sums + tensor.diff.sums)
        return dict(sorted(totals.items(), key=lambda item: _badness(item[1][1].relative_change)))


def sorted_by_error(
    models: ModelDiff, types: Mapping[str, tuple[str, str]], blocks: Mapping[str, tuple[BlockError, ...]]
) -> Iterator[TensorError]:
    """The tensors of a comparison, the worst first. NaN counts as the worst."""
    for diff in sorted(models.tensors, key=lambda tensor: _badness(tensor.sums.relative_change)):
        yield TensorError(diff, *types[diff.name], blocks.get(diff.name, ()))


def _badness(error: float) -> float:
    return -math.inf if math.isnan(error) else -error
