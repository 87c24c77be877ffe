"""Integers in groups: the search of grids, and error feedback against NumPy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import lbrx
from lbrx.ops.feedback_factors import feedback_factors
from lbrx.ops.group_feedback import KINDS, GroupSpec, encode_groups, packed_words
from support.quantized_weights import pack_stream

TYPES: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
ROWS, COLUMNS = 70, 128


@pytest.fixture(scope="module")
def weight() -> npt.NDArray[np.float32]:
    return np.random.default_rng(1).standard_normal((ROWS, COLUMNS)).astype(np.float32)


@pytest.fixture(scope="module")
def inputs() -> npt.NDArray[np.float64]:
    random = np.random.default_rng(2)
    return random.standard_normal((1024, COLUMNS)) @ random.standard_normal((COLUMNS, COLUMNS))


def plain_error(weight: npt.NDArray[np.float32], spec: GroupSpec) -> npt.NDArray[np.float32]:
    """The errors of grids from the least to the largest value."""
    tiles, top = weight.reshape(len(weight), -1, spec.size), (1 << spec.bits) - 1
    low, high = tiles.min(-1, keepdims=True), tiles.max(-1, keepdims=True)
    if spec.kind == "symmetric":
        high = np.abs(tiles).max(-1, keepdims=True)
        low = -high * (top + 1) / (top - 1)
    step = (high - low) / top
    return tiles - (np.clip(np.rint((tiles - low) / step), 0, top) * step + low)


@pytest.mark.parametrize("number_type", TYPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("bits", "size"), [(4, 32), (4, 128), (3, 64), (8, 64)])
def test_grids(bits: int, size: int, kind: str, number_type: str, weight: npt.NDArray[np.float32]) -> None:
    """They have less error than plain ones, for weighted columns, and can be stored."""
    spec = GroupSpec(bits, size, kind, number_type)
    importance = np.linspace(0.1, 4, COLUMNS).astype(np.float32)
    found = encode_groups(weight, spec, importance)
    assert found.codes.max() <= (1 << bits) - 1
    errors = plain_error(weight, spec).reshape(weight.shape)
    mine = (importance * np.square(found.values() - weight)).sum()
    assert mine < (0.95 if bits < 8 else 1.06) * (importance * np.square(errors)).sum()
    assert (found.steps > 0).all() or kind == "free"
    np.testing.assert_array_equal(found.steps.astype(TYPES[number_type]).astype(np.float32), found.steps)
    if kind == "free":
        np.testing.assert_array_equal(found.lows.astype(TYPES[number_type]).astype(np.float32), found.lows)
    else:
        zero_points = -found.lows / found.steps
        np.testing.assert_allclose(zero_points, np.rint(zero_points), atol=1e-3)
        assert kind != "symmetric" or (np.rint(zero_points) == 1 << (bits - 1)).all()
        assert zero_points.min() >= -1e-3
        assert zero_points.max() <= (1 << bits) - 1 + 1e-3


def test_feedback_against_numpy(weight: npt.NDArray[np.float32], inputs: npt.NDArray[np.float64]) -> None:
    factors = feedback_factors(inputs.T @ inputs, 0.3)
    spec = GroupSpec(4, COLUMNS, "free", "f32")
    found = encode_groups(weight, spec, np.ones(COLUMNS, np.float32), factors)
    left = weight.copy()
    low, step = found.lows[:, 0], found.steps[:, 0]
    order, upper = factors.ordered((COLUMNS,))
    for place, column in enumerate(order):
        code = np.clip(np.rint((left[:, column] - low) / step), 0, 15).astype(np.float32)
        np.testing.assert_array_equal(found.codes[:, column], code)
        error = (left[:, column] - (low + code * step)) / upper[place, place]
        left[:, order[place:]] -= upper[place, place:] * error[:, None]


@pytest.mark.parametrize("kind", KINDS)
def test_errors_of_products(kind: str, weight: npt.NDArray[np.float32], inputs: npt.NDArray[np.float64]) -> None:
    gram = inputs.T @ inputs
    spec, importance = GroupSpec(4, 32, kind, "f16"), (gram.diagonal() / len(inputs)).astype(np.float32)
    losses = [
        np.square((encode_groups(weight, spec, importance, factors).values() - weight) @ inputs.T).sum()
        for factors in (None, feedback_factors(gram, 0.5), feedback_factors(gram, 0.0))
    ]
    assert losses[1] < 0.85 * losses[0]
    assert losses[2] < 0.85 * losses[1]


def test_threads_do_not_matter(weight: npt.NDArray[np.float32], inputs: npt.NDArray[np.float64]) -> None:
    factors, found = feedback_factors(inputs.T @ inputs), []
    for threads in (1, 3):
        with lbrx.using(threads=threads):
            found.append(encode_groups(weight, GroupSpec(4, 32, "free", "f16"), np.ones(COLUMNS, np.float32), factors))
    np.testing.assert_array_equal(found[0].codes, found[1].codes)
    np.testing.assert_array_equal(found[0].steps, found[1].steps)


@pytest.mark.parametrize("kind", KINDS)
def test_groups_of_equal_values(kind: str) -> None:
    weight = np.repeat(np.array([[0.0], [2.0], [-3.0]], np.float32), 64, axis=1)
    found = encode_groups(weight, GroupSpec(4, 64, kind, "f16"), np.ones(64, np.float32))
    np.testing.assert_allclose(found.values(), weight, rtol=1e-3)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_words(bits: int) -> None:
    codes = np.random.default_rng(1).integers(0, 1 << bits, (3, 64)).astype(np.uint8)
    np.testing.assert_array_equal(packed_words(codes, bits), pack_stream(codes, bits).view(np.uint32))
