"""Sharded tensors: partitions, and reductions and element-wise passes over a cluster, bit for bit as on one machine."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.cluster import ClusterError, Partition
from lbrx.cluster.sharded import ShardedTensor, _ranges
from lbrx.errors import ShapeError, UsageError

SHAPE = (700, 1000)  # blocks of 65536 elements begin within rows


@pytest.fixture
def model(folder: Path) -> Path:
    path = folder / "model.safetensors"
    tensors = {name: lbrx.normal(SHAPE, seed=seed).to("bf16") for seed, name in enumerate("ab")}
    lbrx.save(path, tensors | {"row": lbrx.normal((1000,), seed=3).to("f32")})
    return path


def test_partitions_along_an_axis() -> None:
    assert Partition.by_axis((7, 5), 1, 2).shapes((7, 5)) == [(7, 3), (7, 2)]
    assert Partition.by_axis((7, 5), 0, 7).parts == 7
    with pytest.raises(UsageError, match="8 parts of an axis of 7 were asked for; expected 1 to 7"):
        Partition.by_axis((7, 5), 0, 8)
    with pytest.raises(ShapeError, match="has no axis 2"):
        Partition.by_axis((7, 5), 2, 1)


def test_partitions_by_bytes_and_into_given_sizes() -> None:
    assert Partition.by_bytes((6, 100), "bf16", 450).ranges() == [(0, 2), (2, 4), (4, 6)]
    assert Partition.by_bytes((2, 100), "f32", 1).ranges() == [(0, 1), (1, 2)]
    assert Partition.uneven((6, 2), 0, (1, 0, 5)).shapes((6, 2)) == [(1, 2), (0, 2), (5, 2)]
    with pytest.raises(ShapeError, match=r"shards of \(1, 2\) along an axis of 6; expected sizes that add up to it"):
        Partition.uneven((6, 2), 0, (1, 2))


def test_ranges_begin_at_whole_blocks() -> None:
    assert _ranges(100, 16, 3) == [(0, 48), (48, 96), (96, 100)]
    assert _ranges(10, 64, 3) == [(0, 10)]


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("op", ["sum", "sumsq", "min", "max", "argmax"])
def test_reductions_are_those_of_one_machine(op: str, model: Path) -> None:
    a = lbrx.open(model)["a"]
    expected = {"sumsq": lambda: (a * a).sum()}.get(op, lambda: getattr(a, op)())()
    found = ShardedTensor.open(model, "a").reduce(op)
    assert np.asarray(found).tobytes() == np.asarray(expected.numpy()).astype(np.asarray(found).dtype).tobytes()


@pytest.mark.usefixtures("ray_cluster")
def test_products_and_expressions_with_rows_are_those_of_one_machine(model: Path) -> None:
    opened = lbrx.open(model)
    a, b, row = opened["a"], opened["b"], opened["row"]
    sharded_a, sharded_b = (ShardedTensor.open(model, name) for name in "ab")
    assert float(sharded_a.reduce("dot", sharded_b)) == float(a.dot(b))
    place = str(model)

    def scaled(values: lbrx.Tensor) -> lbrx.Tensor:
        return values * lbrx.open(place)["row"]

    assert float(sharded_a.map(scaled).reduce("sum")) == float((a * row).sum())


@pytest.mark.usefixtures("ray_cluster")
def test_an_element_wise_pass_writes_the_bytes_of_one_machine(model: Path, folder: Path) -> None:
    opened = lbrx.open(model)
    lbrx.save(folder / "local.safetensors", {"w": (opened["a"] - 0.3 * opened["b"]).to("bf16")})
    partition = Partition.uneven(SHAPE, 0, (100, 0, 599, 1))
    a, b = ShardedTensor.open(model, "a", partition), ShardedTensor.open(model, "b")
    a.map(lambda x, y: (x - 0.3 * y).to("bf16"), b).save(folder / "clustered.safetensors", "w")
    assert (folder / "clustered.safetensors").read_bytes() == (folder / "local.safetensors").read_bytes()
    columns = ShardedTensor.open(model, "a", Partition.by_axis(SHAPE, 1, 3))
    np.testing.assert_array_equal(columns.shards()[1].numpy(), opened["a"][:, 334:667].numpy())
    with pytest.raises(UsageError, match="shards along axis 1 lie scattered in a file"):
        columns.save(folder / "columns.safetensors", "w")


@pytest.mark.usefixtures("ray_cluster")
def test_what_cannot_be_reduced_in_shards_is_refused(model: Path) -> None:
    a = ShardedTensor.open(model, "a")
    with pytest.raises(UsageError, match="'dot' of 1 tensors"):
        a.reduce("dot")
    with pytest.raises(UsageError, match="needs element-wise expressions"):
        a.map(lambda x: x / x.norm()).reduce("sum")


@pytest.mark.usefixtures("ray_cluster")
def test_an_error_of_a_worker_is_told(model: Path) -> None:
    driver = os.getpid()

    def breaks(values: lbrx.Tensor) -> lbrx.Tensor:
        if os.getpid() != driver:
            raise ValueError("no such luck")
        return values * 2

    with pytest.raises(
        ClusterError, match=r"rows 0 to \d+: failed 3 times on the cluster, at last: ValueError: no such luck"
    ):
        ShardedTensor.open(model, "a").map(breaks).reduce("sum")
