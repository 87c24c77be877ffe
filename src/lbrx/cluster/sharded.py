"""Tensors that a cluster computes with in pieces, with the results of one machine, bit for bit.

A reduction is a list of partial results of fixed blocks of elements, combined in their order. Workers compute the
partial results of whole blocks, so that it does not matter who computes which; the driver combines them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from math import lcm, prod
from pathlib import Path
from typing import Any

import numpy as np

from lbrx.base import system
from lbrx.base.atomic_write import partial_file, replace
from lbrx.base.fast_dataclass import dataclass
from lbrx.cluster.calls import Call, results_in_order
from lbrx.cluster.connection import Connection, connected, nodes_of, worker_count
from lbrx.cluster.partition import Partition
from lbrx.engine.arrays import Floats, Values
from lbrx.engine.bind import BoundPass, Known, bind
from lbrx.engine.block_sizes import REDUCTION_BLOCK
from lbrx.engine.device import CPU, run_pass
from lbrx.engine.evaluate import evaluate_stores
from lbrx.engine.fuse import SinkRequest, fuse
from lbrx.engine.program import ROWS
from lbrx.engine.reductions import combined
from lbrx.errors import ShapeError, UsageError
from lbrx.files.formats.header import TensorSpec
from lbrx.files.formats.safetensors import lay_out
from lbrx.files.output.file_writer import FileDestination, FileWriter
from lbrx.ops.shards import part
from lbrx.settings import using
from lbrx.tensors.expr import Reduce
from lbrx.tensors.shape import broadcast_shapes
from lbrx.tensors.tensor import Tensor

RANGES_PER_WORKER = 4
Range = tuple[int, int]


@dataclass(frozen=True, eq=False)
class ShardedTensor:
    """A tensor that every worker can make, as an expression over files that all of them can reach; and its partition.

    >>> import lbrx, tempfile
    >>> path = tempfile.mkdtemp() + "/a.safetensors"
    >>> lbrx.save(path, {"w": lbrx.tensor([[1.0, 2.0], [3.0, 4.0]])})
    >>> weights = ShardedTensor.open(path, "w")
    >>> weights.map(lambda w: w * 2).shards()[1].numpy().tolist()
    [[6.0, 8.0]]
    """

    make: Callable[[], Tensor]
    partition: Partition

    @classmethod
    def open(cls, path: str | os.PathLike[str], name: str, partition: Partition | None = None) -> ShardedTensor:
        """A tensor of a file or directory; by default a shard for every row."""
        location = os.path.abspath(path) if "://" not in os.fspath(path) else os.fspath(path)

        def make() -> Tensor:
            from lbrx.files.checkpoint.opening import open_checkpoint

            return open_checkpoint(location)[name]

        shape = make().shape
        if not shape:
            raise ShapeError(f"{path}: tensor {name!r} has no axis to cut it along")
        return cls(make, partition or Partition.by_axis(shape, 0, max(shape[0], 1)))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.make().shape

    def map(self, function: Callable[..., Tensor], *others: ShardedTensor) -> ShardedTensor:
        """What an element-wise function gives for this tensor and others of its shape; nothing is computed yet."""
        makers = [self.make, *(other.make for other in others)]
        if any(other.shape != self.shape for other in others):
            raise ShapeError(
                f"shards of shapes {[self.shape, *(other.shape for other in others)]}; expected equal ones"
            )

        def make() -> Tensor:
            return function(*(each() for each in makers))

        return ShardedTensor(make, self.partition)

    def shards(self) -> list[Tensor]:
        """The shards as tensors of this process, not computed yet; those of a quantized tensor are quantized."""
        whole, axis = self.make(), self.partition.axis
        return [part(whole, axis, low, high) for low, high in self.partition.ranges()]

    def reduce(self, op: str, other: ShardedTensor | None = None, *, address: str = "auto") -> Any:
        """``"sum"``, ``"sumsq"``, ``"min"``, ``"max"``, ``"argmax"`` or, with another tensor, ``"dot"``: a number."""
        makers = [self.make] if other is None else [self.make, other.make]
        reduction = _reduction(op, [make() for make in makers])
        rows = broadcast_shapes(*(arg.shape for arg in reduction.args))[0]
        with connected(address) as connection:
            workers = _workers(connection)
            ranges = _ranges(rows, _rows_per_block(reduction), workers * RANGES_PER_WORKER)
            calls = [Call(f"rows {low} to {high - 1}", (op, makers, low, high)) for low, high in ranges]
            partials = list(results_in_order(connection, _partials, calls, threads=1, ahead=2 * workers))
        values = np.concatenate([values for values, _ in partials])
        columns = prod(broadcast_shapes(*(arg.shape for arg in reduction.args))[1:])
        indices = None
        if op == "argmax":
            indices = np.concatenate(
                [index + low * columns for (_, index), (low, _) in zip(partials, ranges, strict=True)]
            )
        return combined(reduction, values, indices)

    def linear(self, x: Values, bias: Values | None = None, *, address: str = "auto") -> Floats:
        """x [..., k] times this tensor [m, k] transposed, plus a bias: [..., m]; see `lbrx.cluster.products`.

        Cut along axis 0 (column parallel) it is `lbrx.ops.linear` on one machine, bit for bit; cut along axis 1
        (row parallel) it is `lbrx.ops.row_parallel_linear` of the same shards, bit for bit, on any number of nodes.
        """
        from lbrx.cluster.products import sharded_linear

        return sharded_linear(x, self, bias, address)

    def save(self, path: str | os.PathLike[str], name: str, *, address: str = "auto") -> None:
        """Write the tensor into a SafeTensors file on a file system that the nodes share, each shard by a worker."""
        if self.partition.axis != 0:
            raise UsageError(f"shards along axis {self.partition.axis} lie scattered in a file; expected axis 0")
        tensor, target = self.make(), Path(path).resolve()
        layout = lay_out(target.name, [TensorSpec(name, tensor.dtype.name, tensor.shape)], {})
        with partial_file(target) as partial:
            descriptor = system.open_write(partial)
            try:
                system.preallocate(descriptor, layout.file_bytes, partial)
                system.pwrite_all(descriptor, layout.header, 0, partial)
            finally:
                os.close(descriptor)
            with connected(address) as connection:
                offset = layout.slots[0].offset
                calls = [
                    Call(f"rows {low} to {high - 1}", (self.make, partial, offset, low, high))
                    for low, high in self.partition.ranges()
                    if high > low
                ]
                for _ in results_in_order(connection, _store, calls, threads=1, ahead=2 * _workers(connection)):
                    pass
            replace(partial, target)


def _workers(connection: Connection) -> int:
    return max(worker_count(nodes_of(connection.ray), 1), 1)


def _reduction(op: str, tensors: Sequence[Tensor]) -> Reduce:
    """The node of a reduction; what has to know a result of another pass first is refused."""
    known = {"sum": 1, "sumsq": 1, "min": 1, "max": 1, "argmax": 1, "dot": 2}
    if known.get(op) != len(tensors):
        raise UsageError(
            f"{op!r} of {len(tensors)} tensors; expected one of {', '.join(known)}, 'dot' with two tensors"
        )
    for tensor in tensors:
        if not tensor.expr.is_simple or not tensor.shape:
            raise UsageError("a sharded reduction needs element-wise expressions of tensors with axes")
    return Reduce(op, tuple(tensor.expr for tensor in tensors), last_axis=False)


def _bound(reduction: Reduce) -> BoundPass:
    space = broadcast_shapes(*(arg.shape for arg in reduction.args))
    return bind(fuse(space, [SinkRequest(reduction.op, reduction.dtype, reduction.args)]), Known())


def _rows_per_block(reduction: Reduce) -> int:
    """The least number of rows that are whole blocks, in the way in which one machine would cut them."""
    bound = _bound(reduction)
    columns = max(prod(broadcast_shapes(*(arg.shape for arg in reduction.args))[1:]), 1)
    block = REDUCTION_BLOCK
    if bound.program.mode == ROWS:
        block = max(1, REDUCTION_BLOCK // max(bound.columns, 1)) * max(bound.columns, 1)
    return lcm(block, columns) // columns


def _ranges(rows: int, step: int, parts: int) -> list[Range]:
    """Rows in ranges that begin at multiples of a step, about as many as there are parts."""
    size = max(-(-rows // (step * max(parts, 1))), 1) * step
    return [(low, min(low + size, rows)) for low in range(0, rows, size)] or [(0, rows)]


def _partials(op: str, makers: Sequence[Callable[[], Tensor]], low: int, high: int) -> tuple[Any, Any]:
    """On a worker: the partial results of the blocks of some rows, and for ``argmax`` their indices."""
    reduction = _reduction(op, [make()[low:high] for make in makers])
    with using(threads=1, device=CPU):
        ((values, indices),) = run_pass(_bound(reduction), [None])
    return values, indices


def _store(make: Callable[[], Tensor], path: Path, offset: int, low: int, high: int) -> None:
    """On a worker: some rows of a tensor, written into a file."""
    part = make()[low:high]
    start = part.dtype.nbytes(low * prod(part.shape[1:]))
    descriptor = system.open_write(path, must_exist=True)
    try:
        with using(threads=1):
            file = FileWriter(descriptor, path)
            evaluate_stores([(part.expr, FileDestination(file, offset + start, part.dtype))])
        system.flush_to_disk(descriptor, path)
    finally:
        os.close(descriptor)
