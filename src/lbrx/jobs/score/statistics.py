"""Estimates with confidence intervals, and tests of differences, for values of consecutive tokens.

Neighbouring tokens are not independent: a surprising word makes the next ones surprising as well. Standard errors of
means are therefore estimated from means of blocks of tokens, which are nearly independent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from lbrx.base.fast_dataclass import dataclass

Numbers = npt.NDArray[np.float64]

BLOCK_TOKENS = 32
LEAST_BLOCKS = 8
QUANTILES = (0.001, 0.01, 0.05, 0.1, 0.5, 0.9, 0.95, 0.99, 0.999)
_NORMAL_95 = 1.959964


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its 95 % confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4g} ({self.low:.4g} to {self.high:.4g})"


def mean_error(values: Numbers) -> tuple[float, int]:
    """Return the standard error of the mean of consecutive values, and its degrees of freedom.

    With fewer than ``LEAST_BLOCKS`` blocks, values are treated as independent.

    >>> mean_error(np.array([1.0, 3.0]))
    (1.0, 1)
    """
    if values.size < 2:
        return math.nan, 0
    blocks = values.size // BLOCK_TOKENS
    if blocks >= LEAST_BLOCKS:
        values = np.array([block.mean() for block in np.array_split(values, blocks)])
    return float(values.std(ddof=1)) / math.sqrt(values.size), values.size - 1


def mean_estimate(values: Numbers) -> Estimate:
    """Return the mean of consecutive values with its interval.

    >>> mean_estimate(np.full(1000, 2.0))
    Estimate(value=2.0, low=2.0, high=2.0)
    """
    mean = float(values.mean())
    error, freedom = mean_error(values)
    reach = error * _student_95(freedom)
    return Estimate(mean, mean - reach, mean + reach)


def root_mean_square(values: Numbers) -> Estimate:
    """Return the root of the mean square with its interval."""
    squares = mean_estimate(values * values)
    return Estimate(*(math.sqrt(max(each, 0.0)) for each in (squares.value, squares.low, squares.high)))


def quantile_estimate(ordered: Numbers, share: float) -> Estimate:
    """Return a quantile of sorted values. The interval is between two of the values, found by their ranks.

    >>> quantile_estimate(np.arange(101.0), 0.5)
    Estimate(value=50.0, low=40.0, high=60.0)
    """
    reach = _NORMAL_95 * math.sqrt(ordered.size * share * (1 - share))
    ranks = (ordered.size - 1) * share + np.array([-reach, reach])
    low, high = np.clip(np.round(ranks), 0, ordered.size - 1).astype(int)
    return Estimate(float(np.quantile(ordered, share)), float(ordered[low]), float(ordered[high]))


def quantile_estimates(values: Numbers) -> Mapping[float, Estimate]:
    """Return minimum, maximum and the quantiles in ``QUANTILES``, by their share of the values."""
    ordered = np.sort(values)
    ends = {share: float(ordered[place]) for share, place in ((0.0, 0), (1.0, -1))}
    return {
        0.0: Estimate(ends[0.0], ends[0.0], ends[0.0]),
        **{share: quantile_estimate(ordered, share) for share in QUANTILES},
        1.0: Estimate(ends[1.0], ends[1.0], ends[1.0]),
    }


def share_estimate(hits: int, count: int) -> Estimate:
    """Return a share of independent cases with Wilson's interval.

    >>> print(share_estimate(8, 10))
    0.8 (0.4902 to 0.9433)
    """
    share, z = hits / count, _NORMAL_95
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    reach = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return Estimate(share, max(middle - reach, 0.0), min(middle + reach, 1.0))


def probability_of_no_difference(differences: Numbers) -> float:
    """Return the two-sided p-value of a paired test: could the mean of the differences be 0?

    >>> probability_of_no_difference(np.zeros(10))
    1.0
    """
    mean = float(differences.mean())
    error, freedom = mean_error(differences)
    if mean == 0.0:
        return 1.0
    if not error > 0.0:
        return math.nan if math.isnan(error) else 0.0
    return math.erfc(_as_normal(abs(mean) / error, freedom) / math.sqrt(2))


def _student_95(freedom: int) -> float:
    """The 97.5 % quantile of Student's distribution, by the Cornish-Fisher expansion."""
    z, n = _NORMAL_95, max(freedom, 1)
    return z + (z**3 + z) / (4 * n) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n * n)


def _as_normal(t: float, freedom: int) -> float:
    """Return the value of the normal distribution with nearly the same tail as ``t`` of Student's (Wallace, 1959)."""
    n = max(freedom, 1)
    return (8 * n + 1) / (8 * n + 3) * math.sqrt(n * math.log1p(t * t / n))
