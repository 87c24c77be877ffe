"""Products with a sharded weight on a cluster.

Column parallel: the weight is cut along its outputs, and every worker makes some columns of the result. One machine
makes a result in tiles, and BLAS may round a sum differently in a tile of another shape; so shards are joined and moved
until every worker has whole tiles of the one machine. What comes out is that machine's, bit for bit.

Row parallel: the weight is cut along its inputs, and every worker makes a summand of the whole result. The driver adds
them in the order of the shards, independent of worker and time: the result depends on the partition alone,
not on the number of nodes. It is within the bound of `linear`, plus one rounding for every shard.

Bit for bit means: on nodes with one kind of processor and one version of NumPy, because BLAS chooses its code by them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from itertools import pairwise

import numpy as np

from lbrx.cluster.calls import Call, results_in_order
from lbrx.cluster.connection import Connection, connected, nodes_of, task_threads, worker_count
from lbrx.cluster.sharded import Range, ShardedTensor
from lbrx.engine.arrays import Floats, Values, floats, row_vector
from lbrx.engine.block_sizes import MOST_VECTORS, SQUARE_TILES, TILES_WANTED
from lbrx.errors import ShapeError
from lbrx.ops.linear import linear
from lbrx.ops.shards import part
from lbrx.settings import settings, using
from lbrx.tensors.tensor import Tensor

TASKS_PER_WORKER = 4
# `linear` begins its tiles at multiples of their size, which is one of these powers of two and does not change with
# the number of rows once those are so many tiles. Fewer rows are multiplied as a whole.
TILE_ROWS = max(SQUARE_TILES)
LEAST_ROWS = TILE_ROWS * TILES_WANTED


def sharded_linear(x: Values, weight: ShardedTensor, bias: Values | None = None, address: str = "auto") -> Floats:
    """x [..., k] times a sharded weight [m, k] transposed, plus a bias: [..., m]."""
    values, shape = floats(x), weight.shape
    if len(shape) != 2 or values.ndim == 0 or values.shape[-1] != shape[1]:
        raise ShapeError(
            f"activations of shape {values.shape} do not fit a sharded weight of shape {shape}; "
            "expected [..., k] and [m, k]"
        )
    added = None if bias is None else row_vector(bias, shape[0], "the bias of linear")
    multiply = _column_parallel if weight.partition.axis == 0 else _row_parallel
    with connected(address) as connection:
        out = multiply(values, weight, connection)
    return out if added is None else out + added


def _column_parallel(values: Floats, weight: ShardedTensor, connection: Connection) -> Floats:
    vectors, columns = values.size // max(values.shape[-1], 1), weight.shape[0]
    threads, workers = _team(connection)
    # A few vectors are multiplied row by row, and it does not matter which rows come together.
    step, least = (1, 1) if vectors <= MOST_VECTORS else (TILE_ROWS, LEAST_ROWS)
    ranges = whole_tiles(weight.partition.bounds, step, least, workers * TASKS_PER_WORKER)
    held, given = connection.ray.put(values), (threads, settings.activation_bits)
    calls = [
        Call(f"rows {low} to {high - 1} of a weight", (weight.make, 0, low, high, held, *given)) for low, high in ranges
    ]
    out = np.empty((*values.shape[:-1], columns), np.float32)
    results = results_in_order(connection, _multiplied, calls, threads=threads, ahead=2 * workers)
    for (low, high), some in zip(ranges, results, strict=True):
        out[..., low:high] = some
    return out


def _row_parallel(values: Floats, weight: ShardedTensor, connection: Connection) -> Floats:
    threads, workers = _team(connection)
    weight.shards()  # shards that cannot be cut are an error before anything is sent
    ranges = [(low, high) for low, high in weight.partition.ranges() if high > low]
    given = threads, settings.activation_bits
    calls = [
        Call(
            f"columns {low} to {high - 1} of a weight",
            (weight.make, 1, low, high, np.ascontiguousarray(values[..., low:high]), *given),
        )
        for low, high in ranges
    ]
    out = np.zeros((*values.shape[:-1], weight.shape[0]), np.float32)
    for summand in results_in_order(connection, _multiplied, calls, threads=threads, ahead=2 * workers):
        out += summand
    return out


def whole_tiles(bounds: tuple[int, ...], step: int, least: int, most_parts: int) -> list[Range]:
    """The ranges between bounds, which are moved to multiples of a step, at least so large, and no more than so many.

    >>> whole_tiles((0, 5000, 6000, 14000), 1024, 4096, 8)
    [(0, 5120), (5120, 14000)]
    >>> whole_tiles(tuple(range(101)), 1, 1, 4)
    [(0, 25), (25, 50), (50, 75), (75, 100)]
    """
    stop = bounds[-1]
    wanted = bounds[1:-1]
    if len(bounds) - 1 > most_parts:
        even = [stop * number // most_parts for number in range(1, most_parts)]
        wanted = tuple(bounds[bisect_left(bounds, offset)] for offset in even)
    ends = [0]
    for bound in wanted:
        moved = (bound + step // 2) // step * step
        if moved - ends[-1] >= least and stop - moved >= least:
            ends.append(moved)
    return [(low, high) for low, high in pairwise([*ends, stop]) if high > low]


def _team(connection: Connection) -> tuple[int, int]:
    """Processors of a task, and how many tasks run at once."""
    nodes = nodes_of(connection.ray)
    threads = task_threads(nodes, None)
    return threads, worker_count(nodes, threads)


def _multiplied(
    make: Callable[[], Tensor], axis: int, low: int, high: int, values: Floats, threads: int, activation_bits: int
) -> Floats:
    """On a worker: activations times a part of a weight."""
    with using(threads=threads, device="cpu", activation_bits=activation_bits):
        return linear(values, part(make(), axis, low, high))
