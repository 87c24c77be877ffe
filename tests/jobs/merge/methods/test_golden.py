"""All merges that mergekit 0.1.5 made, tensor by tensor.

An error is relative to the larger of the result and the inputs at the same element: where inputs cancel out, the last
bits of a sum say nothing about the result.
"""

from __future__ import annotations

import numpy as np
import pytest

from support.golden import RECIPES, Array, GoldenTensor, fusion_importance, fusion_threshold, golden_tensors, load_model

TOLERANCES = {"karcher": 2e-5, "multislerp": 2e-5, "multislerp_base": 2e-5, "arcee_fusion": 2e-5}
DEFAULT_TOLERANCE = 1e-6

# float32 leaves mergekit three digits of a row's divergence, a sum of terms that cancel out: elements whose importance
# is this near to the threshold are kept or dropped by its rounding.
FUSION_THRESHOLD_NOISE = 2e-3


def relative_error(golden: GoldenTensor) -> Array:
    expected = golden.expected.astype(np.float64)
    size = np.abs([*golden.inputs, golden.expected]).max(axis=0).astype(np.float64)
    difference = np.abs(golden.merged.numpy().astype(np.float64) - expected)
    without_size = np.where(difference == 0, 0.0, np.inf)
    return np.asarray(np.divide(difference, size, out=without_size, where=size > 0))


def test_there_are_33_recipes() -> None:
    assert len(RECIPES) == 33


@pytest.mark.parametrize("name", [name for name in RECIPES if name not in ("linear_bf16", "arcee_fusion")])
def test_f32_output_is_that_of_mergekit(name: str) -> None:
    tolerance = TOLERANCES.get(name, DEFAULT_TOLERANCE)
    for golden in golden_tensors(name):
        assert relative_error(golden).max() <= tolerance, golden.name


def test_bf16_output_is_within_one_unit_in_the_last_place() -> None:
    for golden in golden_tensors("linear_bf16"):
        got, expected = (
            np.ascontiguousarray(array).view(np.int16).astype(np.int32)
            for array in (golden.merged.numpy(), golden.expected)
        )
        # Bits of negative numbers count downwards from the sign bit.
        ordered = [np.where(bits < 0, -0x8000 - bits, bits) for bits in (got, expected)]
        assert np.abs(ordered[0] - ordered[1]).max() <= 1, golden.name


def test_exact_where_only_single_operations_round() -> None:
    exact = ("ties", "ties3_lambda_int8", "task_arithmetic", "breadcrumbs", "breadcrumbs_ties", "dare_ties_density1")
    for name in exact:
        for golden in golden_tensors(name):
            np.testing.assert_array_equal(golden.merged.numpy(), golden.expected, err_msg=f"{name}: {golden.name}")


def test_arcee_fusion_is_that_of_mergekit_away_from_the_threshold() -> None:
    elements = uncertain = 0
    for golden in golden_tensors("arcee_fusion"):
        base, model = (load_model(f"models/{name}")[golden.name] for name in "ab")
        importance = fusion_importance(base.astype(np.float64), model.astype(np.float64))
        near = np.abs(importance / fusion_threshold(importance) - 1) < FUSION_THRESHOLD_NOISE
        got = golden.merged.numpy()
        assert relative_error(golden)[~near].max() <= TOLERANCES["arcee_fusion"], golden.name
        is_either = np.isclose(got, base, rtol=1e-6, atol=0) | np.isclose(got, model, rtol=1e-6, atol=1e-8)
        assert is_either[near].all(), golden.name
        elements += near.size
        uncertain += int(near.sum())
    assert uncertain <= elements * 2e-3
