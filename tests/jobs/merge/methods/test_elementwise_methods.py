"""Methods that choose element by element, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import lbrx
from lbrx import tensor
from lbrx.errors import UsageError
from lbrx.jobs.merge.methods.arcee_fusion import arcee_fusion
from lbrx.jobs.merge.methods.linear import linear
from lbrx.jobs.merge.methods.nearswap import nearswap
from lbrx.jobs.merge.methods.passthrough import passthrough
from lbrx.jobs.merge.methods.ram import ram
from lbrx.jobs.merge.methods.ramplus_tl import ramplus_tl
from lbrx.jobs.merge.methods.sce import sce
from support.golden import fusion_importance, fusion_threshold

Array = npt.NDArray[Any]


def coarse_models(count: int, shape: tuple[int, ...] = (12, 10)) -> tuple[Array, list[Array]]:
    """A base and models with deltas of few values, many of them zero."""
    generator = np.random.default_rng(8)
    base = generator.integers(-8, 8, shape).astype(np.float32)
    return base, [base + generator.integers(-2, 3, shape).astype(np.float32) for _ in range(count)]


def test_linear_with_negative_and_unnormalized_weights() -> None:
    a, b = np.array([1, 2], np.float32), np.array([10, 20], np.float32)
    np.testing.assert_array_equal(linear([tensor(a), tensor(b)], weight=[3.0, -1.0]).numpy(), (3 * a - b) / 2)
    got = linear([tensor(a), tensor(b)], weight=[3.0, -3.0], normalize=False).numpy()
    np.testing.assert_array_equal(got, 3 * a - 3 * b)


def test_linear_needs_weights_that_do_not_cancel() -> None:
    with pytest.raises(UsageError, match=r"linear: the weights \[1.0, -1.0\] sum to zero"):
        linear([tensor([1.0]), tensor([2.0])], weight=[1.0, -1.0])


def test_passthrough_without_a_scale_computes_nothing() -> None:
    model = tensor(np.arange(3))
    assert passthrough([model]) is model


def test_nearswap_takes_near_elements_whole_and_far_ones_in_part() -> None:
    base, model = np.array([1, 1, 1, 1], np.float32), np.array([1, 1.5, 2, 11], np.float32)
    got = nearswap(tensor(base), [tensor(model)], t=0.5).numpy()
    np.testing.assert_allclose(got, [1, 1.5, 1.5, 1.5], rtol=1e-6)
    np.testing.assert_array_equal(nearswap(tensor(base), [tensor(model)], t=0.0).numpy(), base)


@pytest.mark.parametrize("shape", [(40,), (30, 20), (3, 10, 8)])
def test_arcee_fusion_takes_the_elements_above_the_threshold(shape: tuple[int, ...]) -> None:
    generator = np.random.default_rng(6)
    base, delta = (generator.standard_normal(shape).astype(np.float32) for _ in range(2))
    model = base + delta
    importance = fusion_importance(base.astype(np.float64), model.astype(np.float64))
    threshold = fusion_threshold(importance)
    clear = np.abs(importance / threshold - 1) > 1e-4
    got = arcee_fusion(tensor(base), [tensor(model)]).numpy()
    expected = np.where(importance >= threshold, model, base)
    assert 0 < np.count_nonzero(importance >= threshold) < base.size
    np.testing.assert_allclose(got[clear], expected[clear], rtol=1e-6, atol=1e-6)


def reference_sce(base: Array, models: list[Array], share: float) -> Array:
    deltas = np.stack([model - base for model in models]).astype(np.float64)
    if share < 1:
        variance = deltas.var(axis=0)
        kept = int(np.count_nonzero(variance) * share)
        mask = np.zeros(base.size, bool)
        mask[np.argsort(-variance, axis=None, kind="stable")[:kept]] = True
        deltas *= mask.reshape(base.shape)
    weights = (deltas**2).mean(axis=(1, 2))
    weights = weights / weights.sum() if weights.sum() >= 1e-6 else np.full(len(models), 1 / len(models))
    agrees = np.sign(deltas) == np.where(deltas.sum(0) >= 0, 1, -1)
    used = weights.reshape(-1, 1, 1) * agrees
    return np.asarray(base + (deltas * used).sum(0) / np.maximum(used.sum(0), 1e-6))


@pytest.mark.parametrize("share", [0.0, 0.01, 0.4, 1.0])
def test_sce(share: float) -> None:
    base, models = coarse_models(2)  # the variances of two models' whole numbers are exact
    got = sce(tensor(base), [tensor(model) for model in models], select_topk=share).numpy()
    np.testing.assert_allclose(got, reference_sce(base, models, share), rtol=1e-6, atol=1e-6)


def test_sce_weighs_about_zero_deltas_equally() -> None:
    base = np.zeros((2, 2), np.float32)
    models = [tensor(base + np.float32(1e-4)), tensor(base + np.float32(3e-4))]
    np.testing.assert_allclose(sce(tensor(base), models).numpy(), 2e-4, rtol=1e-5)


@pytest.mark.parametrize("count", [1, 3])
def test_ram_and_ramplus(count: int) -> None:
    base, models = coarse_models(count)
    epsilon, r, alpha = 1.0, 0.5, 0.25
    deltas = np.stack([model - base for model in models])
    active = np.abs(deltas) > epsilon
    changed_by = active.sum(0)
    mean = (deltas * active).sum(0) / np.maximum(changed_by, 1)
    inputs = tensor(base), [tensor(model) for model in models]
    np.testing.assert_allclose(ram(*inputs, epsilon=epsilon).numpy(), base + mean, rtol=1e-6)

    expected = base + np.where(changed_by > 1, mean, 0)
    for delta, own in zip(deltas, active, strict=True):
        unique = own & (changed_by == 1)
        shared = own & (changed_by > 1)
        gain = 1 + r * min(shared.sum() / max(unique.sum(), 1), alpha)
        expected = expected + gain * delta * unique
    got = ramplus_tl(*inputs, epsilon=epsilon, r=r, alpha=alpha).numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)


def test_the_gain_of_ramplus_is_a_share_of_the_elements_of_one_model() -> None:
    base, a, b = lbrx.zeros((4,)), lbrx.tensor([4.0, 4.0, 4.0, 0.0]), lbrx.tensor([2.0, 0.0, 0.0, 0.0])
    merged = ramplus_tl(base, [a, b], r=0.5, alpha=1.0).numpy()  # one shared, and two of a alone: 1 + 0.5 / 2
    np.testing.assert_array_equal(merged, [3, 5, 5, 0])
