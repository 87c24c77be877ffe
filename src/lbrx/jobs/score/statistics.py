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
QUANTILES = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999)
_NORMAL_95 = 1.959964
_ALMOST_1 = 1 - 1e-15


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


def quantile_estimate(values: Numbers, share: float) -> Estimate:
    """Return a quantile of consecutive values. The interval is between two of the values, found by their ranks.

    >>> quantile_estimate(np.arange(101.0), 0.5)
    Estimate(value=50.0, low=40.0, high=60.0)
    """
    return _quantile(values, np.sort(values), share)


def _quantile(values: Numbers, ordered: Numbers, share: float) -> Estimate:
    value = float(np.quantile(ordered, share))
    reach = _NORMAL_95 * math.sqrt(ordered.size * share * (1 - share) * clustering(values <= value))
    ranks = (ordered.size - 1) * share + np.array([-reach, reach])
    low, high = np.clip(np.round(ranks), 0, ordered.size - 1).astype(int)
    return Estimate(value, float(ordered[low]), float(ordered[high]))


def quantile_estimates(values: Numbers) -> Mapping[float, Estimate]:
    """Return minimum, maximum and the quantiles in ``QUANTILES``, by their share of the values."""
    ordered = np.sort(values)
    ends = {share: float(ordered[place]) for share, place in ((0.0, 0), (1.0, -1))}
    return {
        0.0: Estimate(ends[0.0], ends[0.0], ends[0.0]),
        **{share: _quantile(values, ordered, share) for share in QUANTILES},
        1.0: Estimate(ends[1.0], ends[1.0], ends[1.0]),
    }


def clustering(hits: npt.NDArray[np.bool_]) -> float:
    """Return by how much the variance of a share of consecutive cases exceeds that of independent ones, at least 1.

    >>> clustering(np.arange(6400) % 2 == 0), round(clustering(np.arange(6400) % 64 < 32))
    (1.0, 32)
    """
    share = float(hits.mean())
    error, _ = mean_error(hits.astype(np.float64))
    independent = math.sqrt(share * (1 - share) / hits.size)
    return min(max((error / independent) ** 2, 1.0), float(BLOCK_TOKENS)) if independent > 0 and error > 0 else 1.0


def token_share_estimate(hits: npt.NDArray[np.bool_]) -> Estimate:
    """Return the share of consecutive tokens for which something is true, with its interval."""
    count = hits.size / clustering(hits)
    return share_estimate(float(hits.mean()) * count, count)


def correlation_estimate(first: Numbers, second: Numbers) -> Estimate:
    """Return the correlation of consecutive values. The interval leaves out one block of tokens at a time (jackknife).

    >>> print(correlation_estimate(np.arange(1000.0), 2 * np.arange(1000.0)))
    1 (1 to 1)
    """
    count = max(first.size // BLOCK_TOKENS, 1)
    if first.size < 2 or not (first.std() > 0 and second.std() > 0):
        return Estimate(math.nan, math.nan, math.nan)
    first, second = first - first.mean(), second - second.mean()
    columns = np.stack([np.ones_like(first), first, second, first * first, second * second, first * second])
    sums = np.stack([block.sum(axis=1) for block in np.array_split(columns, count, axis=1)])
    whole = _correlation(sums.sum(axis=0))
    if count < LEAST_BLOCKS:
        return Estimate(whole, math.nan, math.nan)
    angles = np.arctanh(np.clip([_correlation(sums.sum(axis=0) - block) for block in sums], -_ALMOST_1, _ALMOST_1))
    error = math.sqrt((count - 1) * float(angles.var()))
    middle, reach = math.atanh(min(max(whole, -_ALMOST_1), _ALMOST_1)), error * _student_95(count - 1)
    return Estimate(whole, math.tanh(middle - reach), math.tanh(middle + reach))


def _correlation(sums: Numbers) -> float:
    """The correlation for the number of values and their sums, sums of squares and sum of products."""
    count, first, second, squares, other_squares, products = map(float, sums)
    variances = (squares - first * first / count) * (other_squares - second * second / count)
    return (products - first * second / count) / math.sqrt(variances) if variances > 0 else math.nan


def share_estimate(hits: float, count: float) -> Estimate:
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
