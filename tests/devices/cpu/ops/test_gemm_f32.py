"""Weights in half types, or of decoded rows, times many vectors in f32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lbrx
from lbrx.devices.cpu.ops import gemm_f32 as operation
from lbrx.devices.cpu.ops.gemm_f32 import gemm_f32
from lbrx.devices.cpu.ops.weight_rows import rows_of
from lbrx.devices.cpu.simd.processor import HAS_512_BITS
from lbrx.ops import linear
from lbrx.tensors.expr import Source
from lbrx.tensors.storage import CpuStorage, ReadStorage
from support.references import THREADS, normal, product_bound, weight_of, wide


class _Read(ReadStorage):
    def __init__(self, inner: CpuStorage) -> None:
        self.inner = inner

    @property
    def nbytes(self) -> int:
        return self.inner.nbytes

    def read_into(self, offset: int, buffer: Any) -> None:
        self.inner.read_into(offset, buffer)


def multiplied(x: Any, weight: lbrx.Tensor, threads: int = 1) -> Any:
    out = np.full((x.shape[0], weight.shape[0]), np.nan, np.float32)
    with lbrx.using(threads=threads):
        gemm_f32(x, rows_of(weight), out)
    return out


def assert_close(x: Any, weight: lbrx.Tensor, got: Any) -> None:
    vectors, rows = wide(x), wide(weight)
    assert (abs(got - vectors @ rows.T) <= product_bound(vectors, rows)).all()


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("vectors", [1, 8, 31, 33, 70])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (11, 7), (48, 16), (53, 255), (97, 530)])
def test_every_shape_of_tiles(dtype: str, vectors: int, rows: int, columns: int) -> None:
    x, weight = normal(vectors, columns), weight_of(dtype, rows, columns)
    assert_close(x, weight, multiplied(x, weight))


@pytest.mark.parametrize("vectors", [512, 513, 2050])
def test_more_vectors_than_a_tile_has(vectors: int) -> None:
    x, weight = normal(vectors, 40), weight_of("bf16", 50, 40)
    assert_close(x, weight, multiplied(x, weight))


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_a_result_depends_on_its_row_and_vector_only(dtype: str) -> None:
    x, weight = normal(600, 300), weight_of(dtype, 131, 300)
    whole = multiplied(x, weight)
    for threads in THREADS:
        np.testing.assert_array_equal(multiplied(x, weight, threads), whole)
    np.testing.assert_array_equal(multiplied(x[590:], weight), whole[590:])
    np.testing.assert_array_equal(multiplied(x, weight[50:55].realize()), whole[:, 50:55])


def test_rows_that_are_decoded_computed_or_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operation, "_TILE_BYTES", 4 * 48 * 64)  # several tiles
    x, values = normal(40, 64), normal(150, 64, seed=1)
    halves = lbrx.tensor(values).to("f16").realize()
    expected = multiplied(x, halves)
    np.testing.assert_array_equal(multiplied(x, halves * 1), expected)
    source: Any = halves.expr
    read = lbrx.Tensor(Source(_Read(source.storage), source.dtype, source.layout))
    np.testing.assert_array_equal(multiplied(x, read), expected)
    coded = lbrx.tensor(values).quantize("mxfp4").realize()
    assert_close(x, coded.to("f32").realize(), multiplied(x, coded))


def test_infinities_and_nan_reach_their_results_only() -> None:
    x, weight = normal(40, 64), weight_of("bf16", 30, 64)
    x[3, 5], x[20, 60] = np.inf, np.nan
    got = multiplied(x, weight)
    assert np.isnan(got[20]).all()
    assert not np.isfinite(got[3]).any()
    others = [row for row in range(40) if row not in (3, 20)]
    assert np.isfinite(got[others]).all()


def test_linear_takes_it_on_processors_with_512_bits() -> None:
    x, weight = normal(40, 64), weight_of("bf16", 30, 64)
    got = linear(x, weight)
    assert_close(x, weight, got)
    if HAS_512_BITS:
        np.testing.assert_array_equal(got, multiplied(x, weight))
