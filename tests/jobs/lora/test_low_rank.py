"""Products of thin matrices, computed as they are read."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import lbrx
from lbrx.engine.bind import Known
from lbrx.engine.products import ProductRows
from lbrx.jobs.lora.low_rank import BLOCK_ROWS, low_rank_product, matrix_factor
from lbrx.tensors.expr import MatMul, Source
from support.peft_fixture import random_array


def product_rows(rows: int, rank: int, columns: int) -> tuple[ProductRows, np.ndarray]:
    """What a pass reads a product from, and the values that it should have."""
    left, right = random_array(1, rows, rank), random_array(2, rank, columns)
    node = low_rank_product(lbrx.tensor(left), lbrx.tensor(right), (rows, columns)).expr
    assert isinstance(node, MatMul)
    product = ProductRows(node, Known())
    return product, left.astype(np.float64) @ right.astype(np.float64)


@pytest.mark.parametrize("rows", [1, BLOCK_ROWS - 1, BLOCK_ROWS, BLOCK_ROWS + 1, 3 * BLOCK_ROWS + 5])
def test_the_whole_product(rows: int) -> None:
    product, expected = product_rows(rows, 5, 17)
    assert product.nbytes == 4 * rows * 17
    np.testing.assert_allclose(
        product.read_at(0, product.nbytes).view(np.float32).reshape(rows, 17), expected, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(
    ("start", "stop"), [(0, 1), (3, 3), (0, 17 * 32), (1, 17 * 32 + 1), (17 * 31 + 5, 17 * 33 + 2), (17 * 64, 17 * 70)]
)
def test_any_window_has_the_bits_of_the_whole(start: int, stop: int) -> None:
    product, _ = product_rows(70, 5, 17)
    whole = product.read_at(0, product.nbytes).view(np.float32)
    np.testing.assert_array_equal(product.read_at(4 * start, 4 * (stop - start)).view(np.float32), whole[start:stop])


def test_a_window_may_begin_within_a_value_and_lie_unaligned_in_memory() -> None:
    product, _ = product_rows(40, 3, 7)
    whole = product.read_at(0, product.nbytes)
    buffer = np.zeros(product.nbytes + 1, np.uint8)
    product.read_into(0, buffer[1:])
    np.testing.assert_array_equal(buffer[1:], whole)
    np.testing.assert_array_equal(product.read_at(5, 50), whole[5:55])


def test_factors_of_any_float_type_and_transposed() -> None:
    left, right = random_array(1, 3, 40).astype(ml_dtypes.bfloat16), random_array(2, 9, 3).astype(np.float16)
    turned = [matrix_factor(lbrx.tensor(values)).T for values in (left, right)]
    product = low_rank_product(turned[0], turned[1], (40, 9))
    np.testing.assert_allclose(
        product.numpy(), left.astype(np.float32).T @ right.astype(np.float32).T, rtol=1e-5, atol=1e-5
    )


def test_a_factor_that_is_a_slice() -> None:
    values = random_array(1, 50, 4)
    product = low_rank_product(
        matrix_factor(lbrx.tensor(values)[10:]), matrix_factor(lbrx.tensor(np.eye(4, dtype=np.float32))), (40, 4)
    )
    np.testing.assert_array_equal(product.numpy(), values[10:])


def test_factors_at_odd_places_of_a_file(tmp_path: Path) -> None:
    values = random_array(3, 6, 2)
    (tmp_path / "odd").write_bytes(b"x" + values.tobytes())
    mapped = lbrx.MmapStorage.from_file(tmp_path / "odd", offset=1)
    tensor = lbrx.Tensor(Source(mapped, lbrx.dtype("f32"), lbrx.Layout.contiguous((6, 2))))
    product = low_rank_product(matrix_factor(tensor), matrix_factor(lbrx.tensor(np.eye(2, dtype=np.float32))), (6, 2))
    np.testing.assert_array_equal(product.numpy(), values)


def test_the_product_in_an_expression_does_not_depend_on_threads_or_chunks() -> None:
    """1000 columns, so that chunks of whole reduction blocks begin within rows and within blocks of rows."""
    left, right = (
        matrix_factor(lbrx.tensor(random_array(1, 700, 24))),
        matrix_factor(lbrx.tensor(random_array(2, 24, 1000))),
    )
    weight = lbrx.tensor(random_array(3, 700, 1000)).to("bf16").realize()
    results = []
    for threads, chunk_elements in ((1, 1 << 30), (1, 1), (2, 1), (3, 200_000), (2, 1 << 19)):
        with lbrx.using(threads=threads, chunk_elements=chunk_elements):
            total = weight + 0.25 * low_rank_product(left, right, (700, 1000))
            results.append((total.numpy(), float(total.sum())))
    for values, sum_of_values in results[1:]:
        np.testing.assert_array_equal(values, results[0][0])
        assert sum_of_values == results[0][1]


def test_what_does_not_fit_is_an_error() -> None:
    left, right = matrix_factor(lbrx.full((4, 2), 1, "f32")), matrix_factor(lbrx.full((3, 4), 1, "f32"))
    with pytest.raises(lbrx.ShapeError, match=r"\(4, 2\) and \(3, 4\) do not match"):
        low_rank_product(left, right, (4, 4))
    with pytest.raises(lbrx.ShapeError, match=r"\(4, 4\) with 16 elements cannot be reshaped to \(4, 5\)"):
        low_rank_product(left, matrix_factor(lbrx.full((2, 4), 1, "f32")), (4, 5))
    with pytest.raises(lbrx.ShapeError, match="matrix of floats"):
        matrix_factor(lbrx.full((4,), 1, "f32"))


def test_only_windows_of_the_product_are_ever_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = matrix_factor(lbrx.tensor(random_array(1, 1200, 4)))
    right = matrix_factor(lbrx.tensor(random_array(2, 4, 500)))
    windows: list[int] = []
    read_into = ProductRows.read_into

    def recorded(self: ProductRows, offset: int, buffer: np.ndarray) -> None:
        windows.append(buffer.size)
        read_into(self, offset, buffer)

    monkeypatch.setattr(ProductRows, "read_into", recorded)
    with lbrx.using(chunk_elements=1):
        total = lbrx.full((1200, 500), 1, "f32") + low_rank_product(left, right, (1200, 500))
        lbrx.save(tmp_path / "out.safetensors", {"w": total})
    assert sum(windows) == 4 * 1200 * 500
    assert max(windows) <= 4 * 65536
