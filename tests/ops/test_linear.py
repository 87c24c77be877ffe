"""linear: every type of weight, few and many vectors, odd shapes, extreme values, any number of threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lbrx
from lbrx.devices.cpu.ops import codec_products
from lbrx.engine.block_sizes import MOST_VECTORS
from lbrx.errors import ShapeError
from lbrx.memory import scratch
from lbrx.ops import linear
from lbrx.registry import CODECS
from lbrx.tensors.codecs.codec import codec
from lbrx.tensors.coded import Blocks
from lbrx.tensors.storage import CpuStorage
from support.references import THREADS, TYPE_NAMES, coded_bound, normal, product_bound, weight_of, wide

CODED_TYPES = [name for name in codec_products.FEW_VECTORS if name in CODECS]


def assert_close(x: Any, weight: lbrx.Tensor, got: Any) -> None:
    vectors, rows = wide(x), wide(weight)
    bound = product_bound(vectors, rows)
    is_few = len(vectors) <= MOST_VECTORS
    if (codec_products.of_few_vectors if is_few else codec_products.of_many_vectors)(weight.expr):
        bound = bound + coded_bound(vectors, rows)
    error = abs(got - vectors @ rows.T)
    assert (error <= bound).all(), f"{(error / bound).max()} of the bound"


@pytest.fixture(params=[True, False], ids=["as_words", "by_blas"])
def words_or_blas(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many vectors by both of the ways that processors choose from."""
    monkeypatch.setattr(codec_products, "MULTIPLIES_PAIRS", request.param)


@pytest.mark.parametrize("vectors", [5, 33])
@pytest.mark.parametrize("rows", [1, 63, 66])
@pytest.mark.parametrize("columns", [256, 1280])
@pytest.mark.parametrize("type_name", CODED_TYPES)
@pytest.mark.usefixtures("words_or_blas")
def test_quantized_weights_times_many_vectors(type_name: str, columns: int, rows: int, vectors: int) -> None:
    x, weight = normal(vectors, columns), weight_of(type_name, rows, columns)
    assert_close(x, weight, linear(x, weight))


@pytest.mark.usefixtures("words_or_blas")
def test_more_vectors_than_are_coded_at_once() -> None:
    x, weight = normal(1100, 64), weight_of("q8_0", 5, 64)
    got = linear(x, weight)
    assert_close(x, weight, got)
    if codec_products.MULTIPLIES_PAIRS:  # BLAS may take another way for another number of vectors
        np.testing.assert_array_equal(got[600:700], linear(x[600:700], weight))


@pytest.mark.parametrize("vectors", [1, 3, 5, 40])
@pytest.mark.parametrize("type_name", TYPE_NAMES)
def test_every_kind_of_weight(type_name: str, vectors: int) -> None:
    x, weight = normal(vectors, 512), weight_of(type_name, 67, 512)
    got = linear(x, weight)
    assert got.dtype == np.float32
    assert_close(x, weight, got)


SMALL_BLOCKS = [name for name in CODED_TYPES if codec(name).block_elements < 256]


@pytest.mark.parametrize("type_name", SMALL_BLOCKS)
@pytest.mark.parametrize("blocks", [1, 2, 3, 5, 6, 7, 9, 17])
@pytest.mark.parametrize("vectors", [1, 4, 7])
def test_rows_that_are_no_whole_groups_of_blocks(type_name: str, blocks: int, vectors: int) -> None:
    columns = blocks * codec(type_name).block_elements
    x, weight = normal(vectors, columns), weight_of(type_name, 5, columns)
    assert_close(x, weight, linear(x, weight))


@pytest.mark.parametrize("type_name", SMALL_BLOCKS)
def test_the_next_row_does_not_matter_to_the_end_of_a_row(type_name: str) -> None:
    """Its first blocks are read with the last ones of the row, and here have infinite scales."""
    columns, block_bytes = 5 * codec(type_name).block_elements, codec(type_name).block_bytes
    x, weight = normal(1, columns), weight_of(type_name, 2, columns)
    expected = linear(x, weight)[0, 0]
    blocks = weight.expr
    assert isinstance(blocks, Blocks)
    stored = np.array(blocks.storage.read_at(0, blocks.nbytes))
    stored[5 * block_bytes :] = 0xFF
    spoiled = lbrx.Tensor(Blocks(CpuStorage(stored), type_name, (2, columns)))
    assert linear(x, spoiled)[0, 0] == expected


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["f32", "f16", "bf16"]), st.integers(0, 9), st.integers(0, 70), st.integers(0, 100), st.integers()
)
def test_odd_shapes(type_name: str, vectors: int, rows: int, columns: int, seed: int) -> None:
    x, weight = normal(vectors, columns, seed=abs(seed)), weight_of(type_name, rows, columns)
    got = linear(x, weight)
    assert got.shape == (vectors, rows)
    assert_close(x, weight, got)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(CODED_TYPES),
    st.integers(1, 40),
    st.integers(1, 140),
    st.integers(1, 21),
    st.integers(0, 2**32),
)
def test_odd_shapes_of_blocks(type_name: str, vectors: int, rows: int, blocks: int, seed: int) -> None:
    columns = blocks * codec(type_name).block_elements
    x, weight = normal(vectors, columns, seed=seed), weight_of(type_name, rows, columns)
    x *= np.exp2(np.random.default_rng(seed).integers(-8, 8, x.shape)).astype(np.float32)
    assert_close(x, weight, linear(x, weight))


@pytest.mark.parametrize("type_name", ["f32", "bf16", "q4_0", "q4_k", "q5_1", "int4"])
@pytest.mark.parametrize("vectors", [1, 200])
def test_the_same_bytes_on_any_number_of_threads(type_name: str, vectors: int) -> None:
    x, weight = normal(vectors, 1280), weight_of(type_name, 900, 1280)
    found = []
    for threads in THREADS:
        with lbrx.using(threads=threads):
            found.append(linear(x, weight).tobytes())
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("vectors", [1, 7])
@pytest.mark.parametrize("type_name", ["f32", "f16", "bf16", *CODED_TYPES])
def test_infinities_and_nan_are_kept(type_name: str, vectors: int) -> None:
    x, weight = normal(vectors, 256), weight_of(type_name, 33, 256)
    x[0, 3] = np.inf
    with np.errstate(invalid="ignore"):
        expected = wide(x) @ wide(weight).T
    got = linear(x, weight)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    np.testing.assert_array_equal(np.isposinf(got), np.isposinf(expected))
    x[0, 3] = np.nan
    assert np.isnan(linear(x, weight)[0]).all()


@pytest.mark.parametrize("scale", [1e-44, 1e-38, 1e-20, 1e20, 1e35])
@pytest.mark.parametrize("type_name", ["f32", "bf16", *CODED_TYPES])
@pytest.mark.parametrize("vectors", [2, 6])
def test_small_and_large_numbers(type_name: str, scale: float, vectors: int) -> None:
    x, weight = (normal(vectors, 256) * scale).astype(np.float32), weight_of(type_name, 9, 256)
    assert_close(x, weight, linear(x, weight))


@pytest.mark.parametrize("vectors", [1, 6])
def test_numbers_of_very_different_sizes_share_a_vector(vectors: int) -> None:
    x, weight = normal(vectors, 256), weight_of("q8_0", 9, 256)
    x *= np.repeat(np.float32([1e-30, 1e-6, 1, 1e6, 0, 1e-3, 1e30, 1e-42]), 32)
    assert_close(x, weight, linear(x, weight))


@pytest.mark.parametrize("vectors", [1, 3, 8, 40])
@pytest.mark.parametrize("type_name", ["q8_0", "q4_k", "int4"])
def test_decoded_and_transposed_weights(type_name: str, vectors: int) -> None:
    x, coded = normal(vectors, 256), lbrx.tensor(normal(40, 256)).quantize(type_name).realize()
    expected = x @ coded.numpy().T
    for product in (linear(x, coded.dequantize()), (x @ coded.T).numpy()):
        np.testing.assert_allclose(product, expected, rtol=1e-4, atol=1e-4 * float(np.abs(expected).max()))


def test_leading_axes_and_bias() -> None:
    x, weight, bias = normal(2, 3, 64), weight_of("bf16", 10, 64), normal(10, seed=4)
    got = linear(lbrx.tensor(x), weight, lbrx.tensor(bias))
    np.testing.assert_array_equal(got, (linear(x.reshape(6, 64), weight) + bias).reshape(2, 3, 10))
    assert linear(x[0, 0], weight).shape == (10,)


def test_weights_that_are_expressions_or_views() -> None:
    x, first, second = normal(6, 96), weight_of("bf16", 40, 96), weight_of("f16", 40, 96, seed=9)
    for weight in (first * 0.5 + second, first[::2], first[:, :].T.T, weight_of("f32", 80, 192)[10:50, ::2]):
        for vectors in (1, 6):
            assert_close(x[:vectors], weight, linear(x[:vectors], weight))


@pytest.mark.parametrize("type_name", ["f32", "bf16", "q4_0"])
def test_weights_in_a_file(type_name: str, tmp_path: Path) -> None:
    path = tmp_path / ("model.gguf" if type_name in CODECS else "model.safetensors")
    x, weight = normal(9, 256), weight_of(type_name, 70, 256)
    lbrx.save(path, {"a": lbrx.tensor(np.zeros(3, np.int8)), "weight": weight})
    stored = lbrx.open(path)["weight"]
    for vectors in (1, 9):
        np.testing.assert_array_equal(linear(x[:vectors], stored), linear(x[:vectors], weight))


def test_scratch_memory_does_not_grow_with_the_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    arena = scratch.scratch_arena()
    get = arena.get

    def counting(nbytes: int, *rest: Any) -> Any:
        asked.append(nbytes)
        return get(nbytes, *rest)

    monkeypatch.setattr(arena, "get", counting)
    for rows in (4096, 8192):
        weight = lbrx.Tensor(lbrx.tensor(np.zeros((1, 1024), np.float16)).broadcast_to((rows, 1024)).realize().expr)
        linear(normal(8, 1024), weight)
    assert max(asked) <= 8 << 20


def test_shapes_that_do_not_fit() -> None:
    weight = weight_of("f32", 5, 8)
    with pytest.raises(ShapeError, match=r"activations of shape \(3, 7\).*\(5, 8\)"):
        linear(normal(3, 7), weight)
    with pytest.raises(ShapeError, match=r"the bias of linear has shape \(4,\); expected \(5,\)"):
        linear(normal(3, 8), weight, normal(4))
    with pytest.raises(ShapeError, match=r"expected \[..., k\] and \[m, k\]"):
        linear(normal(3, 8), weight.reshape(5, 8, 1))
