"""How rows of new tokens are made."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import UsageError, nearest

METHODS = ("omp", "common_interpolation", "subword", "mean", "zero", "randn", "john_hewitt")
WEIGHTINGS = ("distance_proportional", "barycentric", "least_squares")
SUBWORDS = ("mean", "sum", "weighted_mean", "first_last")
PREFIXES = ("no", "embed", "head", "yes")
SHARED_METHODS = ("omp", "common_interpolation")  # that read the donor's rows of shared tokens
DEFAULT_COUNT = 64


@dataclass(frozen=True, slots=True)
class TransplantOptions:
    """How a row for a token that the model lacks is made.

    ``omp`` and ``common_interpolation`` combine the rows of ``k`` shared tokens. Their coefficients describe the
    donor's row of the token by the donor's rows of these tokens. ``weights`` and ``cosine`` belong to the
    interpolation, ``subword`` to the method of that name. ``prefix_match`` copies the row of the longest token that the
    new one begins with, in the embedding, the head or both. New rows are multiplied by ``scale``; ``noise`` is the
    standard deviation of what is added to them.

    >>> TransplantOptions(method="ompp")
    Traceback (most recent call last):
    lbrx.errors.UsageError: unknown method 'ompp'; did you mean 'omp'?
    """

    method: str = "omp"
    k: int = DEFAULT_COUNT
    weights: str = "distance_proportional"
    cosine: bool = False
    subword: str = "mean"
    prefix_match: str = "no"
    scale: float = 1.0
    noise: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        _check_name("method", self.method, METHODS)
        _check_name("weights", self.weights, WEIGHTINGS)
        _check_name("subword method", self.subword, SUBWORDS)
        _check_name("prefix match", self.prefix_match, PREFIXES)
        if self.k < 1:
            raise UsageError(f"the number of shared tokens is {self.k}; expected at least 1")
        if not math.isfinite(self.scale) or not 0 <= self.noise < math.inf:
            raise UsageError(f"scale is {self.scale}, noise {self.noise}; expected numbers, and no negative noise")

    def takes_prefixes(self, *, is_head: bool) -> bool:
        """Return whether a row may be that of a prefix, in the head or the embedding."""
        return self.prefix_match in ("yes", "head" if is_head else "embed")

    def identity(self) -> dict[str, Any]:
        """Return everything that the rows depend on besides the models."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def _check_name(what: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        hint = nearest(name, known) or f"; expected one of {', '.join(known)}"
        raise UsageError(f"unknown {what} {name!r}{hint}")
