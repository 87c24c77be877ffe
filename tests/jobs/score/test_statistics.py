"""Intervals and tests for consecutive tokens, checked by simulation."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from lbrx.jobs.score.statistics import (
    correlation_estimate,
    mean_error,
    mean_estimate,
    probability_of_no_difference,
    quantile_estimate,
    quantile_estimates,
    root_mean_square,
    share_estimate,
    token_share_estimate,
)


def correlated(random: np.random.Generator, count: int) -> npt.NDArray[np.float64]:
    """Values with mean 0 of which each is half of the one before, plus noise."""
    noise = random.standard_normal(count + 50)
    values = np.zeros(count + 50)
    for place in range(1, count + 50):
        values[place] = 0.5 * values[place - 1] + noise[place]
    return values[50:]


def test_intervals_of_correlated_values_contain_the_mean_95_times_of_100() -> None:
    random = np.random.default_rng(1)
    samples = [correlated(random, 1600) for _ in range(400)]
    intervals = [mean_estimate(values) for values in samples]
    hits = sum(each.low <= 0 <= each.high for each in intervals)
    plain = sum(abs(values.mean()) <= 1.96 * values.std(ddof=1) / 40 for values in samples)
    assert 0.91 <= hits / 400 <= 0.98
    assert plain / 400 < 0.80  # what independent tokens would give


def test_the_p_value_is_uniform_without_a_difference_and_small_with_one() -> None:
    random = np.random.default_rng(2)
    values = [probability_of_no_difference(correlated(random, 800)) for _ in range(400)]
    assert 0.02 <= np.mean(np.array(values) < 0.05) <= 0.09
    assert 0.4 <= np.mean(np.array(values) < 0.5) <= 0.6
    assert probability_of_no_difference(correlated(random, 3200) + 0.5) < 1e-6


def test_few_values_are_treated_as_independent() -> None:
    values = np.arange(10.0)
    error, freedom = mean_error(values)
    assert (error, freedom) == (pytest.approx(values.std(ddof=1) / math.sqrt(10)), 9)
    reach = mean_estimate(values).high - 4.5
    assert reach == pytest.approx(2.262157 * error, rel=5e-3)  # Student's distribution with 9 degrees of freedom
    assert math.isnan(mean_estimate(np.array([1.0])).low)
    assert math.isnan(probability_of_no_difference(np.array([1.0])))


def test_a_p_value_is_that_of_students_distribution() -> None:
    values = np.array([1.0, 2.0, 3.0, 4.0, 2.5, 0.5, -1.0, 2.0])
    assert probability_of_no_difference(values) == pytest.approx(0.01557, rel=0.02)


def test_quantile_intervals_cover() -> None:
    random = np.random.default_rng(3)
    for share, true in ((0.5, math.log(2)), (0.9, math.log(10))):
        found = [quantile_estimate(random.exponential(size=500), share) for _ in range(300)]
        assert 0.91 <= np.mean([each.low <= true <= each.high for each in found]) <= 0.99


def test_quantiles_include_both_ends() -> None:
    found = quantile_estimates(np.arange(1000.0)[::-1])
    assert (found[0.0].value, found[1.0].value) == (0.0, 999.0)
    assert list(found) == sorted(found)
    assert found[0.5].value == 499.5


def test_root_mean_square() -> None:
    found = root_mean_square(np.tile([3.0, -4.0], 400))
    assert found.value == pytest.approx(math.sqrt(12.5))
    assert found.low <= found.value <= found.high


def test_shares_stay_between_0_and_1() -> None:
    assert share_estimate(0, 5).low == pytest.approx(0.0)
    assert share_estimate(5, 5).high == pytest.approx(1.0)
    assert share_estimate(5, 5).low == pytest.approx(0.5655, abs=1e-3)


def test_intervals_of_quantiles_and_shares_of_correlated_values_cover() -> None:
    random = np.random.default_rng(4)
    samples = [correlated(random, 2048) for _ in range(200)]
    limit = 1.2815516 * math.sqrt(4 / 3)  # the 90 % quantile
    quantiles = [quantile_estimate(values, 0.9) for values in samples]
    assert 0.90 <= np.mean([each.low <= limit <= each.high for each in quantiles]) <= 0.99
    shares = [token_share_estimate(values <= limit) for values in samples]
    assert 0.90 <= np.mean([each.low <= 0.9 <= each.high for each in shares]) <= 0.99


def test_clustered_cases_count_less_than_independent_ones() -> None:
    hits = np.arange(6400) % 64 < 32
    independent = share_estimate(3200, 6400)
    clustered = token_share_estimate(hits)
    assert clustered.value == independent.value == 0.5
    assert clustered.high - 0.5 == pytest.approx(math.sqrt(32) * (independent.high - 0.5), rel=0.03)


def test_the_interval_of_a_correlation_covers() -> None:
    random = np.random.default_rng(5)
    found = []
    for _ in range(200):
        first = correlated(random, 1024)
        found.append(correlation_estimate(first, 0.8 * first + 0.6 * correlated(random, 1024)))
    assert 0.90 <= np.mean([each.low <= 0.8 <= each.high for each in found]) <= 0.99
    values = random.standard_normal(100)
    few = correlation_estimate(values, values**2)
    assert few.value == pytest.approx(np.corrcoef(values, values**2)[0, 1])
    assert math.isnan(few.low)
    assert math.isnan(correlation_estimate(np.ones(9), values[:9]).value)
