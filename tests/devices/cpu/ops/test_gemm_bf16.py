"""bf16 times bf16: on processors with instructions for it, and on all others as f32, within the same bounds."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lbrx
from lbrx.devices.cpu.ops import gemm_bf16
from lbrx.ops import linear, matmul
from lbrx.tensors.storage import CpuStorage, ReadStorage
from support.references import THREADS, normal, product_bound, weight_of, wide

BF16 = ml_dtypes.bfloat16


def half(*shape: int, seed: int = 0) -> Any:
    return normal(*shape, seed=seed).astype(BF16)


def assert_close(x: Any, weight: lbrx.Tensor, got: Any) -> None:
    vectors, rows = wide(x), wide(weight)
    assert got.dtype == np.float32
    assert (abs(got - vectors @ rows.T) <= product_bound(vectors, rows)).all()


@pytest.fixture(params=[True, False], ids=["as_it_is", "as_f32"], autouse=True)
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """By instructions for bf16, if the processor has them, and without."""
    monkeypatch.setattr(gemm_bf16, "MULTIPLIES_BF16", request.param and gemm_bf16.MULTIPLIES_BF16)


@pytest.mark.parametrize("vectors", [1, 15, 16, 17, 23, 40, 530])
@pytest.mark.parametrize("rows", [1, 4, 63, 66, 130])
@pytest.mark.parametrize("columns", [32, 96, 1056])
def test_every_shape_of_tiles(vectors: int, rows: int, columns: int) -> None:
    x, weight = half(vectors, columns), weight_of("bf16", rows, columns)
    assert_close(x, weight, linear(x, weight))


def test_odd_shapes() -> None:
    @settings(max_examples=60, deadline=None)
    @given(st.integers(0, 70), st.integers(0, 70), st.integers(0, 140), st.integers(0, 2**32))
    def check(vectors: int, rows: int, columns: int, seed: int) -> None:
        x, weight = half(vectors, columns, seed=seed), weight_of("bf16", rows, columns)
        got = linear(x, weight)
        assert got.shape == (vectors, rows)
        assert_close(x, weight, got)

    check()


@pytest.mark.parametrize("is_tensor", [True, False])
def test_leading_axes_tensors_and_matmul(is_tensor: bool) -> None:
    array, weight, bias = half(3, 20, 64), weight_of("bf16", 9, 64), normal(9)
    x: Any = lbrx.tensor(array).realize() if is_tensor else array
    flat = array.reshape(60, 64)
    got = linear(x, weight)
    assert got.shape == (3, 20, 9)
    assert_close(flat, weight, got.reshape(60, 9))
    np.testing.assert_array_equal(linear(x, weight, bias), got + bias)
    assert_close(flat, weight, matmul(x, weight, transpose_b=True).reshape(60, 9))
    assert_close(flat, weight, matmul(x, weight.T).reshape(60, 9))


def test_vectors_that_do_not_lie_one_after_the_other() -> None:
    x = half(64, 100)
    for vectors in (x.T, x[::2, 4:68]):
        weight = weight_of("bf16", 30, 64)
        assert_close(vectors, weight, linear(vectors, weight))


def test_the_same_bytes_on_any_number_of_threads() -> None:
    x, weight = half(200, 1280), weight_of("bf16", 900, 1280)
    found = []
    for threads in THREADS:
        with lbrx.using(threads=threads):
            found.append(linear(x, weight).tobytes())
    assert found[0] == found[1] == found[2]


def test_infinities_and_nan_stay_where_they_are() -> None:
    x, weight = half(33, 64), weight_of("bf16", 20, 64)
    x[3, 5], x[7, 0], x[31, 63] = np.nan, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        expected = wide(x) @ wide(weight).T
    got = linear(x, weight)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    np.testing.assert_array_equal(got[[7, 31]], expected[[7, 31]])


@pytest.mark.parametrize("exponent", [-126, -60, 60])
def test_small_and_large_numbers(exponent: int) -> None:
    x, weight = (normal(20, 64) * 2.0**exponent).astype(BF16), weight_of("bf16", 20, 64)
    x[abs(x.astype(np.float64)) < 2.0**-126] = 0
    got = linear(x, weight)
    bound = product_bound(wide(x), wide(weight)) + 64 * 2.0**-126
    assert (abs(got - wide(x) @ wide(weight).T) <= bound).all()


def test_a_weight_that_has_to_be_read() -> None:
    class Read(ReadStorage):
        def __init__(self, inner: CpuStorage) -> None:
            self.inner = inner

        @property
        def nbytes(self) -> int:
            return self.inner.nbytes

        def read_into(self, offset: int, buffer: Any) -> None:
            self.inner.read_into(offset, buffer)

    x, weight = half(40, 96), weight_of("bf16", 150, 96)
    source: Any = weight.expr
    read = lbrx.Tensor(type(source)(Read(source.storage), source.dtype, source.layout))
    np.testing.assert_array_equal(linear(x, read), linear(x, weight))
