"""TIES, Breadcrumbs and their relatives against NumPy, on data with equal elements, zeros and extreme densities."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from lbrx import tensor
from lbrx.jobs.merge.methods.sparsify import below_outliers, largest
from lbrx.jobs.merge.methods.task_arithmetic import breadcrumbs, breadcrumbs_ties, masked, task_arithmetic, ties

Array = npt.NDArray[Any]

SHAPE = (24, 17)


def coarse_models(count: int, seed: int = 0) -> tuple[Array, list[Array]]:
    """A base and models whose deltas take few values: many are equal in magnitude, and many are zero."""
    generator = np.random.default_rng(seed)
    base = generator.integers(-8, 8, SHAPE).astype(np.float32)
    return base, [base + generator.integers(-3, 4, SHAPE).astype(np.float32) for _ in range(count)]


def kept_by_magnitude(delta: Array, first: int, last: int) -> Array:
    """The elements in the places first to last of the order by magnitude, equal ones by index, else 0."""
    order = np.argsort(-np.abs(delta), axis=None, kind="stable")[first:last]
    kept = np.zeros_like(delta)
    kept.flat[order] = delta.flat[order]
    return kept


def consensus(deltas: list[Array], weight: list[float], normalize: bool) -> Array:
    weighted = np.stack([delta * np.float32(value) for delta, value in zip(deltas, weight, strict=True)])
    majority = np.where(weighted.sum(0) >= 0, 1, -1)
    agrees = np.sign(weighted) == majority
    merged = (weighted * agrees).sum(0)
    if normalize:
        divisor = (agrees * np.array(weight, np.float32).reshape(-1, 1, 1)).sum(0)
        merged = merged / np.where(divisor == 0, 1, divisor)
    return np.asarray(merged)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("density", [0.0, 0.3, 0.5, 0.999, 1.0])
def test_ties(density: float, normalize: bool) -> None:
    base, models = coarse_models(3)
    weight = [0.5, 1.0, -0.25]
    kept = max(1, int(density * base.size))
    deltas = [kept_by_magnitude(model - base, 0, kept) for model in models]
    expected = base + 1.5 * consensus(deltas, weight, normalize)
    got = ties(
        tensor(base),
        [tensor(model) for model in models],
        weight=weight,
        density=[density] * 3,
        normalize=normalize,
        lambda_=1.5,
    )
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-6, atol=1e-6)


def test_ties_of_one_model_adds_its_largest_differences_as_they_are() -> None:
    base, (model,) = coarse_models(1)
    got = ties(tensor(base), [tensor(model)], weight=[0.5], density=[0.25]).numpy()
    np.testing.assert_array_equal(got, base + kept_by_magnitude(model - base, 0, base.size // 4))


def test_ties_divides_by_one_where_weights_cancel() -> None:
    base = np.zeros(2, np.float32)
    models = [tensor(np.array([4, 4], np.float32)), tensor(np.array([-4, 2], np.float32))]
    got = ties(tensor(base), models, weight=[1.0, -1.0], density=[1.0, 1.0]).numpy()
    np.testing.assert_array_equal(got, [8, 4])


@pytest.mark.parametrize("density", [0.0, 0.01, 0.3, 0.77])
def test_largest_keeps_exactly_k_and_among_equals_the_first(density: float) -> None:
    delta = np.random.default_rng(1).integers(-2, 3, SHAPE).astype(np.float32)
    mask = largest(tensor(delta), density)
    assert mask is not None
    kept = max(1, int(density * delta.size))
    assert int(mask.to("i64").sum()) == kept
    expected = np.zeros(delta.size, bool)
    expected[np.argsort(-np.abs(delta), axis=None, kind="stable")[:kept]] = True
    np.testing.assert_array_equal(mask.numpy().ravel(), expected)


def test_everything_is_kept_of_equal_magnitudes_up_to_k() -> None:
    mask = largest(tensor(np.full(10, -2.0, np.float32)), 0.35)
    assert mask is not None
    np.testing.assert_array_equal(mask.numpy(), [True] * 3 + [False] * 7)


@pytest.mark.parametrize(("density", "gamma"), [(0.5, 0.1), (0.9, 0.3), (0.5, 0.0), (0.0, 0.2), (0.2, 1.0)])
def test_below_outliers_keeps_the_places_after_the_outliers(density: float, gamma: float) -> None:
    delta = np.random.default_rng(2).integers(-6, 7, SHAPE).astype(np.float32)
    kept = int(density * delta.size)
    dropped = min(int(gamma * delta.size), delta.size - kept)
    mask = below_outliers(tensor(delta), density, gamma)
    assert mask is not None
    assert int(mask.to("i64").sum()) == kept
    np.testing.assert_array_equal(delta * mask.numpy(), kept_by_magnitude(delta, dropped, dropped + kept))


def test_a_density_of_one_keeps_even_the_outliers() -> None:
    assert largest(tensor(np.zeros(3, np.float32)), 1.0) is None
    assert below_outliers(tensor(np.zeros(3, np.float32)), 1.0, 0.5) is None


def test_breadcrumbs_with_and_without_consensus() -> None:
    base, models = coarse_models(2, seed=5)
    weight, density, gamma = [0.5, 0.75], [0.5, 0.8], [0.1, 0.3]
    deltas = []
    for model, kept_share, dropped_share in zip(models, density, gamma, strict=True):
        kept = int(kept_share * base.size)
        dropped = min(int(dropped_share * base.size), base.size - kept)
        deltas.append(kept_by_magnitude(model - base, dropped, dropped + kept))
    inputs = tensor(base), [tensor(model) for model in models]
    plain = breadcrumbs(*inputs, weight=weight, density=density, gamma=gamma).numpy()
    np.testing.assert_array_equal(plain, base + 0.5 * deltas[0] + 0.75 * deltas[1])
    agreed = breadcrumbs_ties(*inputs, weight=weight, density=density, gamma=gamma).numpy()
    np.testing.assert_array_equal(agreed, base + consensus(deltas, weight, normalize=False))


def test_rescaling_restores_the_l1_norm() -> None:
    delta = np.random.default_rng(3).standard_normal(SHAPE).astype(np.float32)
    kept = masked(tensor(delta), largest(tensor(delta), 0.2), rescale=True).numpy()
    assert np.abs(kept).sum(dtype=np.float64) == pytest.approx(np.abs(delta).sum(dtype=np.float64), rel=1e-6)
    assert np.count_nonzero(kept) == int(0.2 * delta.size)


def test_rescaling_leaves_what_is_about_zero() -> None:
    delta = np.zeros(SHAPE, np.float32)
    assert not masked(tensor(delta), largest(tensor(delta), 0.2), rescale=True).numpy().any()


def test_task_arithmetic_does_not_divide_by_weights_that_cancel() -> None:
    base = np.zeros(1, np.float32)
    models = [tensor(np.array([4], np.float32)), tensor(np.array([1], np.float32))]
    for normalize in (True, False):
        got = task_arithmetic(tensor(base), models, weight=[1.0, -1.0], normalize=normalize).numpy()
        np.testing.assert_array_equal(got, [3])
