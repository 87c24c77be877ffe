"""The randomized SVD against that of NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import lbrx
from lbrx.jobs.lora import svd
from lbrx.jobs.lora.svd import RowBlocks, leading_singular_vectors, vectors_within
from lbrx.memory import budget, set_budget
from support.peft_fixture import random_array


def falling(rows: int, columns: int, power: float) -> np.ndarray:
    """A matrix with singular values 1, 2**-power, 3**-power, ..."""
    left, values, right = np.linalg.svd(random_array(1, rows, columns).astype(np.float64), full_matrices=False)
    matrix: np.ndarray = ((left * np.arange(1, len(values) + 1) ** -power) @ right).astype(np.float32)
    return matrix


@pytest.mark.parametrize(("rows", "columns"), [(200, 90), (90, 200)])
@pytest.mark.parametrize(("power", "share_of_optimum"), [(0.0, 0.93), (0.5, 0.998), (1.0, 0.99999)])
def test_captures_nearly_what_the_best_approximation_does(
    rows: int, columns: int, power: float, share_of_optimum: float
) -> None:
    matrix = random_array(7, rows, columns) if power == 0 else falling(rows, columns, power)
    optimum = np.linalg.svd(matrix.astype(np.float64), compute_uv=False)[:12]
    found = leading_singular_vectors(RowBlocks(lbrx.tensor(matrix)), 12, 0, "w")
    share = np.sum(found.values**2) / np.sum(optimum**2)
    assert share_of_optimum < share < 1 + 1e-9


def test_a_matrix_of_low_rank_is_found_exactly() -> None:
    matrix = (random_array(1, 120, 5) @ random_array(2, 5, 300)).astype(np.float32)
    found = leading_singular_vectors(RowBlocks(lbrx.tensor(matrix)), 5, 0, "w")
    np.testing.assert_allclose(found.values, np.linalg.svd(matrix, compute_uv=False)[:5], rtol=1e-5)
    left, right = found.factors(5)
    np.testing.assert_allclose(left @ right, matrix, atol=2e-5)
    np.testing.assert_allclose(np.linalg.norm(left, axis=0), np.linalg.norm(right, axis=1), rtol=1e-6)
    np.testing.assert_allclose(found.left.T @ found.left, np.eye(5), atol=1e-10)


@pytest.mark.parametrize("shape", [(1, 7), (7, 1), (3, 3), (20, 4)])
def test_all_singular_values_of_a_small_matrix(shape: tuple[int, int]) -> None:
    matrix = random_array(3, *shape)
    found = leading_singular_vectors(RowBlocks(lbrx.tensor(matrix)), 50, 0, "w")
    np.testing.assert_allclose(found.values, np.linalg.svd(matrix.astype(np.float64), compute_uv=False), rtol=1e-6)


def test_the_smallest_rank_within_an_error() -> None:
    matrix = falling(60, 40, 1.0)
    values = np.linalg.svd(matrix.astype(np.float64), compute_uv=False)
    total = float(np.sum(values**2))
    found = leading_singular_vectors(RowBlocks(lbrx.tensor(matrix)), 40, 0, "w")
    for error in (0.5, 0.2, 0.1, 0.05):
        left_over = np.sqrt(np.maximum(total - np.cumsum(values**2), 0) / total)
        assert found.smallest_rank(total, error) == int(np.flatnonzero(left_over <= error)[0]) + 1
    short = leading_singular_vectors(RowBlocks(lbrx.tensor(matrix)), 3, 0, "w")
    assert short.smallest_rank(total, 0.05) is None


def test_blocks_kept_or_computed_again_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(svd, "BLOCK_BYTES", 4 * 50 * 16)
    matrix = lbrx.tensor(falling(100, 50, 0.5)) * 2.0
    kept = leading_singular_vectors(RowBlocks(matrix), 4, 0, "w")
    limit = budget().limit_bytes
    set_budget(4 * 4 * 100 * 50 - 1)
    try:
        blocks = RowBlocks(matrix)
        assert next(blocks.walk())[1] is not next(blocks.walk())[1]
        set_budget(limit)
        again = leading_singular_vectors(blocks, 4, 0, "w")
    finally:
        set_budget(limit)
    np.testing.assert_array_equal(kept.left, again.left)
    np.testing.assert_array_equal(kept.right, again.right)


def test_distances() -> None:
    matrix, left, right = random_array(1, 30, 20), random_array(2, 30, 3), random_array(3, 3, 20)
    expected = np.sum((matrix.astype(np.float64) - left.astype(np.float64) @ right) ** 2)
    assert RowBlocks(lbrx.tensor(matrix)).squared_distance(left, right) == pytest.approx(expected, rel=1e-5)


def test_singular_vectors_that_do_not_fit_into_memory() -> None:
    limit = budget().limit_bytes
    blocks = RowBlocks(lbrx.tensor(random_array(1, 300, 200)))
    set_budget("64KiB")
    try:
        with pytest.raises(lbrx.MemoryBudgetError, match="the singular vectors of 'big'"):
            leading_singular_vectors(blocks, 100, 0, "big")
    finally:
        set_budget(limit)


def test_products_over_many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(svd, "BLOCK_BYTES", 4 * 600 * 37)
    matrix = random_array(1, 300, 600)
    blocks = RowBlocks(lbrx.tensor(matrix))
    assert [first for first, _ in blocks.walk()] == list(range(0, 300, 37))
    wide, tall = matrix.astype(np.float64), random_array(2, 600, 5).astype(np.float64)
    np.testing.assert_allclose(blocks.times(tall), wide @ tall, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(blocks.transposed_times(wide[:, :4].copy()), wide.T @ wide[:, :4], rtol=1e-9, atol=1e-9)
    left, right = random_array(3, 300, 2), random_array(4, 2, 600)
    expected = np.sum((wide - left.astype(np.float64) @ right) ** 2)
    assert blocks.squared_distance(left, right) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("shape", [(300, 90), (90, 300), (50, 50), (1, 9), (9, 1)])
@pytest.mark.parametrize("block_bytes", [svd.BLOCK_BYTES, 4096])
def test_vectors_within_an_error_are_those_of_numpy(
    shape: tuple[int, int], block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(svd, "BLOCK_BYTES", block_bytes)
    matrix = random_array(11, *shape)
    values = np.linalg.svd(matrix.astype(np.float64), compute_uv=False)
    errors = np.sqrt(np.maximum(1 - np.cumsum(values**2) / np.sum(values**2), 0))
    needed = int(np.flatnonzero(errors <= 0.2)[0]) + 1
    found = vectors_within(RowBlocks(lbrx.tensor(matrix)), 0.2, min(shape), 0.0, "w")
    assert found is not None
    np.testing.assert_allclose(found.values, values[:needed], rtol=1e-6)
    left, right = found.factors(needed)
    assert np.linalg.norm(left @ right - matrix) <= 0.2 * np.linalg.norm(matrix)
    np.testing.assert_allclose(found.left.T @ found.left, np.eye(needed), atol=1e-6)
    np.testing.assert_allclose(found.right @ found.right.T, np.eye(needed), atol=1e-6)


def test_spare_vectors_and_the_most_of_them() -> None:
    blocks = RowBlocks(lbrx.tensor(falling(60, 40, 0.0)))
    counts = []
    for most, spare_share in ((40, 0.0), (40, 0.25), (12, 0.25)):
        found = vectors_within(blocks, 0.8, most, spare_share, "w")
        assert found is not None
        counts.append(len(found.values))
    assert counts == [15, 19, 12]


def test_a_product_that_does_not_fit_is_not_made() -> None:
    blocks = RowBlocks(lbrx.tensor(random_array(1, 40, 30)))
    before = budget().limit_bytes
    set_budget(1000)
    try:
        assert vectors_within(blocks, 0.1, 30, 0.0, "w") is None
    finally:
        set_budget(before)
