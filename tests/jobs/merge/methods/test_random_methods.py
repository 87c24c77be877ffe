"""DARE and DELLA: how much is kept, what is expected of it, and that nothing but the seed decides."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from lbrx import Tensor, tensor, using
from lbrx.jobs.merge.methods import MergeContext
from lbrx.jobs.merge.methods.sparsify import random_by_rank, random_share
from lbrx.jobs.merge.methods.task_arithmetic import dare_linear, dare_ties, della, della_linear

Array = npt.NDArray[Any]

ROWS, COLUMNS = 400, 250
CONTEXT = MergeContext("model.layers.3.mlp.up_proj.weight", seed=11)
GENERATOR = np.random.default_rng(4)
BASE = GENERATOR.standard_normal((ROWS, COLUMNS)).astype(np.float32)
# The deltas are exact: base and model are whole numbers of 2**-12.
BASE = np.round(BASE * 4096) / np.float32(4096)
DELTAS = [(np.round(GENERATOR.standard_normal((ROWS, COLUMNS)) * 4096) / 4096).astype(np.float32) for _ in range(2)]
MODELS = [BASE + delta for delta in DELTAS]


def inputs() -> tuple[Tensor, list[Tensor]]:
    return tensor(BASE), [tensor(model) for model in MODELS]


def deviations(count: int, tries: int, probability: float) -> float:
    """How many standard deviations a count of independent hits is off."""
    return abs(count - tries * probability) / math.sqrt(tries * probability * (1 - probability))


@pytest.mark.parametrize("density", [0.1, 0.5, 0.9])
def test_random_share_keeps_the_share_everywhere(density: float) -> None:
    mask = random_share(tensor(DELTAS[0]), density, CONTEXT, model=0)
    assert mask is not None
    kept = mask.numpy()
    assert deviations(int(kept.sum()), kept.size, density) < 5
    for part in (kept[: ROWS // 2], kept[:, ::2], kept[1::3]):
        assert deviations(int(part.sum()), part.size, density) < 5


def test_masks_of_models_tensors_and_seeds_are_independent() -> None:
    delta = tensor(DELTAS[0])

    def mask(context: MergeContext, model: int) -> Array:
        found = random_share(delta, 0.5, context, model)
        assert found is not None
        return found.numpy()

    first = mask(CONTEXT, 0)
    others = [
        mask(CONTEXT, 1),
        mask(MergeContext("model.layers.4.mlp.up_proj.weight", seed=11), 0),
        mask(MergeContext(CONTEXT.tensor_name, seed=12), 0),
    ]
    for other in others:
        assert deviations(int((first == other).sum()), first.size, 0.5) < 5


def test_dare_keeps_or_drops_and_restores_the_l1_norm() -> None:
    base, models = inputs()
    got = dare_linear(base, models[:1], context=CONTEXT, weight=[1.0], density=[0.4]).numpy() - BASE
    kept = got != 0
    assert deviations(int(kept.sum()), int(np.count_nonzero(DELTAS[0])), 0.4) < 5
    factors = got[kept].astype(np.float64) / DELTAS[0][kept]
    large = np.abs(DELTAS[0][kept]) > 0.1
    expected_factor = np.abs(DELTAS[0]).sum(dtype=np.float64) / np.abs(DELTAS[0][kept]).sum(dtype=np.float64)
    np.testing.assert_allclose(factors[large], expected_factor, rtol=1e-4)
    assert expected_factor == pytest.approx(1 / 0.4, rel=0.02)


def test_dare_without_rescaling_keeps_elements_as_they_are() -> None:
    base, models = inputs()
    got = dare_linear(base, models[:1], context=CONTEXT, weight=[1.0], density=[0.4], rescale=False).numpy()
    kept = got != BASE
    np.testing.assert_array_equal(got[kept], MODELS[0][kept])


def test_the_mean_of_dare_over_seeds_is_the_model() -> None:
    base, models = tensor(np.zeros(64, np.float32)), [tensor(np.arange(1, 65, dtype=np.float32))]
    merges = [
        dare_linear(base, models, context=MergeContext("w", seed), weight=[1.0], density=[0.5], rescale=False).numpy()
        for seed in range(400)
    ]
    mean = np.mean(merges, axis=0) / np.arange(1, 65)
    assert np.abs(mean - 0.5).max() < 5 * 0.5 / np.sqrt(400)


def test_a_density_of_zero_leaves_the_base() -> None:
    base, models = inputs()
    shared = {"context": CONTEXT, "weight": [1.0, 1.0], "density": [0.0, 0.0]}
    np.testing.assert_array_equal(dare_ties(base, models, **shared).numpy(), BASE)  # type: ignore[arg-type]
    got = della_linear(base, models, epsilon=[0.2, 0.2], **shared)  # type: ignore[arg-type]
    np.testing.assert_array_equal(got.numpy(), BASE)


def test_dare_ties_adds_what_is_kept_and_agrees() -> None:
    base, models = inputs()
    weight = [1.0, 0.5]
    kept = []
    for index, delta in enumerate(DELTAS):
        mask = random_share(tensor(delta), 0.5, CONTEXT, index)
        assert mask is not None
        kept.append(delta * mask.numpy() * np.float32(weight[index]))
    positive = kept[0] + kept[1] >= 0
    expected = BASE + sum(np.where((delta > 0) == positive, delta, 0) for delta in kept)
    got = dare_ties(base, models, context=CONTEXT, weight=weight, density=[0.5, 0.5], rescale=False).numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)


def test_della_keeps_larger_elements_of_a_row_with_a_larger_probability() -> None:
    density, epsilon = 0.5, 0.2
    mask = random_by_rank(tensor(DELTAS[0]), density, epsilon, CONTEXT, model=0)
    assert mask is not None
    order = np.argsort(np.abs(DELTAS[0]), axis=1, kind="stable")
    by_rank = np.take_along_axis(mask.numpy(), order, axis=1)
    assert deviations(int(by_rank.sum()), by_rank.size, density) < 5
    fifth = COLUMNS // 5
    for part in range(5):
        ranks = np.arange(part * fifth, (part + 1) * fifth)
        probability = float(np.mean(density - epsilon + 2 * epsilon * ranks / (COLUMNS - 1)))
        assert deviations(int(by_rank[:, ranks].sum()), ROWS * fifth, probability) < 5


def test_della_gives_ranks_of_a_short_row_equal_steps() -> None:
    rows = np.tile(np.array([2, -3, 1], np.float32), (5000, 1))
    mask = random_by_rank(tensor(rows), 0.5, 0.5, CONTEXT, model=0)
    assert mask is not None
    middle, largest, smallest = mask.numpy().sum(axis=0)
    assert (largest, smallest) == (5000, 0)
    assert deviations(int(middle), 5000, 0.5) < 5


def test_della_gives_a_row_of_one_element_the_density() -> None:
    mask = random_by_rank(tensor(np.ones((5000, 1), np.float32)), 0.3, 0.25, CONTEXT, model=0)
    assert mask is not None
    assert deviations(int(mask.numpy().sum()), 5000, 0.3) < 5


def test_della_restores_the_l1_norm() -> None:
    base, models = inputs()
    got = della_linear(base, models[:1], context=CONTEXT, weight=[1.0], density=[0.5], epsilon=[0.2]).numpy() - BASE
    assert np.abs(got).sum(dtype=np.float64) == pytest.approx(np.abs(DELTAS[0]).sum(dtype=np.float64), rel=1e-4)


def test_the_same_seed_gives_the_same_bytes_whatever_the_threads_and_chunks() -> None:
    base, models = inputs()
    shared = {"weight": [0.6, 0.4], "density": [0.5, 0.7], "epsilon": [0.1, 0.2]}
    first = della(base, models, context=CONTEXT, **shared).numpy()  # type: ignore[arg-type]
    with using(threads=1, chunk_elements=1000):
        again = della(base, models, context=CONTEXT, **shared).numpy()  # type: ignore[arg-type]
    assert first.tobytes() == again.tobytes()
    other = della(base, models, context=MergeContext(CONTEXT.tensor_name, seed=12), **shared)  # type: ignore[arg-type]
    assert first.tobytes() != other.numpy().tobytes()
