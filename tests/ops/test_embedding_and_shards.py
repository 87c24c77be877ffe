"""Rows looked up, tensors cut and joined, and products with sharded weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.devices.cpu.ops.codec_products import FEW_VECTORS
from lbrx.errors import DTypeError, ShapeError, UsageError
from lbrx.ops import column_parallel_linear, embedding, linear, matrix, row_parallel_linear, shard
from lbrx.ops.difference import _cosine
from lbrx.ops.shards import part
from lbrx.tensors.storage import MmapStorage
from support.references import TYPE_NAMES, coded_bound, normal, product_bound, weight_of, wide


@pytest.mark.parametrize("type_name", TYPE_NAMES)
def test_embedding_gives_the_rows(type_name: str) -> None:
    weight = weight_of(type_name, 11, 256)
    ids = np.array([[3, 0, 10], [3, 3, 7]])
    got = embedding(ids, weight)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, weight.to("f32").numpy()[ids])


def test_embedding_of_nothing_and_of_one() -> None:
    weight = weight_of("f16", 4, 8)
    assert embedding([], weight).shape == (0, 8)
    np.testing.assert_array_equal(embedding(2, weight), weight.to("f32").numpy()[2])


def test_embedding_refuses_bad_ids() -> None:
    weight = weight_of("q8_0", 4, 32)
    for bad in (4, -1):
        with pytest.raises(UsageError, match=f"token id {bad} is out of range; the vocabulary has 4 tokens"):
            embedding([0, bad], weight)
    with pytest.raises(DTypeError, match="token ids must be integers"):
        embedding([0.5], weight)
    with pytest.raises(ShapeError, match="two axes"):
        embedding([0], weight.reshape(4, 4, 8))


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("type_name", TYPE_NAMES)
def test_shards_are_the_whole(type_name: str, count: int, axis: int) -> None:
    whole = weight_of(type_name, 7, 1024)
    parts = whole.shard(count, axis)
    assert len(parts) == count
    np.testing.assert_array_equal(lbrx.gather(parts, axis).numpy(), whole.dequantize().numpy())
    if type_name in ("q4_0", "q4_k"):
        assert [part.type_name for part in parts] == [type_name] * count


def test_shards_of_a_mapped_file_stay_mapped_and_savable(tmp_path: Path) -> None:
    lbrx.save(tmp_path / "a.gguf", {"w": weight_of("q4_0", 6, 128)})
    whole = lbrx.open(tmp_path / "a.gguf")["w"]
    top, bottom = whole.shard(2)
    assert isinstance(top.storage, MmapStorage)
    left, right = whole.shard(2, axis=1)
    lbrx.save(tmp_path / "b.gguf", {"top": top, "bottom": bottom, "left": left, "right": right})
    again = lbrx.open(tmp_path / "b.gguf")
    values = whole.dequantize().numpy()
    np.testing.assert_array_equal(np.concatenate([again[n].dequantize().numpy() for n in ("top", "bottom")]), values)
    np.testing.assert_array_equal(np.concatenate([again[n].dequantize().numpy() for n in ("left", "right")], 1), values)


def test_parts_of_stacks() -> None:
    stack = lbrx.tensor(normal(3, 4, 64)).quantize("q8_0").realize()
    values = stack.dequantize().numpy()
    for number in (0, 2, -1):
        assert matrix(stack, number).type_name == "q8_0"
        np.testing.assert_array_equal(matrix(stack, number).dequantize().numpy(), values[number])
    np.testing.assert_array_equal(matrix(lbrx.tensor(values), 1).numpy(), values[1])
    np.testing.assert_array_equal(lbrx.gather(stack.shard(2, axis=1), 1).numpy(), values)
    with pytest.raises(ShapeError, match="no matrix 3"):
        matrix(stack, 3)


def test_bad_shards() -> None:
    with pytest.raises(UsageError, match="0 shards"):
        shard(weight_of("f32", 4, 4), 0)
    with pytest.raises(ShapeError, match="too few for 5 shards"):
        shard(weight_of("f32", 4, 4), 5)
    with pytest.raises(ShapeError, match="64 elements in blocks of 32, too few for 3 shards"):
        shard(weight_of("q8_0", 4, 64), 3, axis=1)
    with pytest.raises(UsageError, match="no shards"):
        lbrx.gather([])


@pytest.mark.parametrize("vectors", [1, 30])
@pytest.mark.parametrize("type_name", ["f32", "bf16", "q4_0", "q4_k", "q5_k"])
def test_sharded_products(type_name: str, vectors: int) -> None:
    x, weight, bias = normal(vectors, 768), weight_of(type_name, 50, 768), normal(50, seed=7)
    whole = linear(x, weight, bias)
    by_columns = column_parallel_linear(x, weight.shard(3, axis=0), bias)
    by_rows = row_parallel_linear(x, weight.shard(3, axis=1), bias)
    vectors_wide, rows = wide(x), wide(weight)
    bound = product_bound(vectors_wide, rows) + 4 * 2.0**-23 * abs(bias)
    if type_name in FEW_VECTORS:
        bound = bound + coded_bound(vectors_wide, rows)
    want = vectors_wide @ rows.T + bias
    assert (abs(by_columns - want) <= bound).all()
    assert (abs(by_rows - want) <= bound).all()
    if vectors == 1:
        np.testing.assert_array_equal(by_columns, whole)


def test_sharded_products_that_do_not_fit() -> None:
    weight = weight_of("f32", 5, 8)
    with pytest.raises(ShapeError, match=r"shards with 4 \+ 4 inputs"):
        row_parallel_linear(normal(2, 7), weight.shard(2, axis=1))
    with pytest.raises(ShapeError):
        column_parallel_linear(normal(2, 7), weight.shard(2))


def test_bounds_of_parts_are_reported_with_the_block_size_if_there_are_blocks() -> None:
    with pytest.raises(lbrx.ShapeError, match=r"expected bounds from 0 to 4$"):
        part(lbrx.zeros((4, 2)), 0, 1, 5)
    blocks = lbrx.tensor(np.ones((2, 96), np.float32)).quantize("q8_0").realize()
    with pytest.raises(lbrx.ShapeError, match=r"expected bounds from 0 to 96 that are multiples of the block size 32$"):
        part(blocks, 1, 16, 96)


def test_a_cosine_is_within_its_bounds_after_rounding() -> None:
    assert _cosine(1.0000001, 1.0, 1.0) == 1.0
    assert _cosine(-1.0000001, 1.0, 1.0) == -1.0
    assert _cosine(0.5, 1.0, 1.0) == 0.5
