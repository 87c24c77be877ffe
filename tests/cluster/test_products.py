"""Products with sharded weights on a cluster: bit for bit those of one machine, whoever computes what."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import lbrx
from lbrx.cluster import ClusterError, Partition
from lbrx.cluster.products import LEAST_ROWS, TILE_ROWS, whole_tiles
from lbrx.cluster.sharded import ShardedTensor
from lbrx.errors import ShapeError
from lbrx.ops import linear, row_parallel_linear

ROWS, INNER = 13001, 96  # more rows than two runs of tiles, and no whole number of tiles
KINDS = ("f32", "bf16", "q8_0", "q5_0")


def normal(*shape: int, seed: int = 0) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.fixture
def weights(folder: Path) -> Path:
    values = lbrx.tensor(normal(ROWS, INNER, seed=1))
    tensors = {type_name: values.to(type_name) for type_name in ("f32", "bf16")}
    tensors |= {type_name: values.quantize(type_name) for type_name in ("q8_0", "q5_0")}
    lbrx.save(folder / "weights.gguf", tensors)
    return folder / "weights.gguf"


def same_bits(found: npt.NDArray[np.float32], expected: npt.NDArray[np.float32]) -> bool:
    return found.shape == expected.shape and found.tobytes() == expected.tobytes()


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("type_name", KINDS)
def test_column_parallel_is_the_product_of_one_machine_bit_for_bit(type_name: str, weights: Path) -> None:
    whole, bias = lbrx.open(weights)[type_name], normal(ROWS, seed=2)
    shape = (ROWS, INNER)
    partitions = (
        Partition.by_axis(shape, 0, 3),
        Partition.by_bytes(shape, type_name, whole.nbytes // 5),
        Partition.uneven(shape, 0, (5000, 0, 1, 8000)),
        None,
    )
    for vectors in ((), (3,), (2, 15)):
        x = normal(*vectors, INNER, seed=3)
        expected = linear(x, whole, bias)
        for partition in partitions:
            found = ShardedTensor.open(weights, type_name, partition).linear(x, bias)
            assert same_bits(found, expected), (vectors, partition)


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("type_name", KINDS)
def test_row_parallel_adds_in_the_order_of_the_shards(type_name: str, weights: Path) -> None:
    whole, bias = lbrx.open(weights)[type_name], normal(ROWS, seed=2)
    shape = (ROWS, INNER)
    partitions = (
        Partition.by_axis(shape, 1, 2, unit=32),
        Partition.by_bytes(shape, type_name, whole.nbytes // 3, axis=1),
        Partition.uneven(shape, 1, (32, 0, 64)),
    )
    for vectors in ((), (9,)):
        x = normal(*vectors, INNER, seed=3)
        wide = np.abs(x.astype(np.float64)) @ np.abs(whole.dequantize().numpy().astype(np.float64)).T
        for partition in partitions:
            weight = ShardedTensor.open(weights, type_name, partition)
            found = weight.linear(x, bias)
            filled = [shard for shard in weight.shards() if shard.shape[1]]
            assert same_bits(found, row_parallel_linear(x, filled, bias)), (vectors, partition)
            one_machine = linear(x, whole, bias)
            assert (abs(found - one_machine) <= (2.0**-12 if type_name == "q8_0" else 2.0**-16) * wide + 1e-6).all()


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("axis", [0, 1])
def test_workers_use_the_precision_of_activations(axis: int, weights: Path) -> None:
    partition = Partition.by_axis((ROWS, INNER), axis, 2, unit=32 if axis else 1)
    weight, x = ShardedTensor.open(weights, "q8_0", partition), normal(3, INNER, seed=3)
    usual = weight.linear(x)
    with lbrx.using(activation_bits=8):
        found = weight.linear(x)
        assert same_bits(
            found, row_parallel_linear(x, weight.shards()) if axis else linear(x, lbrx.open(weights)["q8_0"])
        )
    assert not same_bits(found, usual)


@pytest.mark.usefixtures("ray_cluster")
def test_an_expression_is_a_weight_too(weights: Path) -> None:
    opened, x = lbrx.open(weights), normal(7, INNER)
    a, b = (
        ShardedTensor.open(weights, type_name, Partition.by_axis((ROWS, INNER), 0, 2)) for type_name in ("f32", "bf16")
    )
    found = a.map(lambda left, right: left - 0.5 * right, b).linear(x)
    assert same_bits(found, linear(x, opened["f32"] - 0.5 * opened["bf16"]))


@pytest.mark.usefixtures("ray_cluster")
def test_a_worker_that_dies_changes_nothing(weights: Path, folder: Path) -> None:
    marker, driver, place = folder / "killed", os.getpid(), str(weights)

    def make() -> lbrx.Tensor:
        if os.getpid() != driver and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return lbrx.open(place)["bf16"]

    x = normal(6, INNER)
    found = ShardedTensor(make, Partition.by_axis((ROWS, INNER), 0, 2)).linear(x)
    assert marker.exists()
    assert same_bits(found, linear(x, lbrx.open(weights)["bf16"]))


@pytest.mark.usefixtures("ray_cluster")
def test_what_fails_three_times_is_told(weights: Path, folder: Path) -> None:
    calls, driver, place = folder / "calls", os.getpid(), str(weights)

    def make() -> lbrx.Tensor:
        if os.getpid() != driver:
            with calls.open("a") as file:
                file.write("x")
            raise ValueError("no such luck")
        return lbrx.open(place)["bf16"]

    weight = ShardedTensor(make, Partition.by_axis((ROWS, INNER), 1, 1))
    with pytest.raises(
        ClusterError, match=r"columns 0 to 95 of a weight: failed 3 times on the cluster, at last: .*no such luck"
    ):
        weight.linear(normal(INNER))
    assert calls.read_text() == "xxx"


@pytest.mark.usefixtures("ray_cluster")
def test_products_that_do_not_fit(weights: Path) -> None:
    weight = ShardedTensor.open(weights, "q8_0", Partition.uneven((ROWS, INNER), 1, (40, 56)))
    with pytest.raises(ShapeError, match=r"activations of shape \(2, 95\) do not fit a sharded weight"):
        weight.linear(normal(2, 95))
    with pytest.raises(ShapeError, match="the bias of linear has shape"):
        weight.linear(normal(2, INNER), normal(3))
    with pytest.raises(ShapeError, match=r"cannot take elements 0 to 40 of axis 1 .* multiples of the block size 32"):
        weight.linear(normal(2, INNER))


def test_shards_are_moved_to_whole_tiles() -> None:
    for rows in (1, 4096, 8191, 8192, 20000, 128256):
        ranges = whole_tiles(Partition.by_axis((rows, 1), 0, min(rows, 1000)).bounds, TILE_ROWS, LEAST_ROWS, 64)
        assert [low for low, _ in ranges] == [0, *(high for _, high in ranges[:-1])]
        assert ranges[-1][1] == rows
        assert all(low % TILE_ROWS == 0 for low, _ in ranges)
        assert all(high - low >= LEAST_ROWS for low, high in ranges) or len(ranges) == 1
    assert whole_tiles((0, 0), 1, 1, 8) == []
    assert whole_tiles((0, 10, 90, 100), 1, 1, 8) == [(0, 10), (10, 90), (90, 100)]
