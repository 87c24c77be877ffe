"""Attention without a matrix of all scores: tiles of queries times blocks of keys, with a running softmax.

A few queries are computed one by one (`attention_rows`), because packing keys would take longer than multiplying them.
`lbrx.ops.attention` describes the operation.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.base.fast_dataclass import dataclass
from lbrx.devices.cpu.build.native import address, bits, code_address, compiled, run
from lbrx.devices.cpu.build.team import run_together
from lbrx.devices.cpu.ops.attention_i16 import PANEL, Sight, attention_i16, can_use_attention_i16, sight
from lbrx.devices.cpu.ops.row_jobs import NANOSECONDS_PER_BYTE
from lbrx.engine.arrays import Floats
from lbrx.engine.attention_options import DTYPE_NAMES, AttentionOptions
from lbrx.engine.blas import in_tiles
from lbrx.memory.scratch import borrowing, result_pool

Array = npt.NDArray[Any]
Ends = tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]  # the first and one past the last key that a row sees
_DTYPE_NUMBERS = {dtype_name: number for number, dtype_name in enumerate(DTYPE_NAMES)}
_LEAST_ROWS, _MOST_ROWS, _TILES_WANTED = 384, 2048, 16
_MANY_ROWS = 24
_BLOCK_KEYS = 256
_LEAST_BYTES = 64 << 10  # of keys and values that are worth another thread


@dataclass(frozen=True, slots=True)
class _Job:
    """What is to be computed, checked."""

    q: Array
    k: Array
    v: Array
    options: AttentionOptions
    scale: float
    softcap: float

    @property
    def group(self) -> int:
        """Query heads that share a head of keys."""
        return int(self.q.shape[0] // self.k.shape[0])

    def visible(self, queries: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The first and one past the last key that each query sees."""
        positions, keys = queries + self.options.offset, self.k.shape[1]
        high = positions + 1 if self.options.causal else np.full_like(positions, keys)
        low = np.zeros_like(positions)
        if self.options.chunk is not None:
            low = positions // self.options.chunk * self.options.chunk
        if self.options.window is not None:
            low = positions - self.options.window + 1
            high = np.minimum(high, positions + self.options.window)
        return np.minimum(np.maximum(low, 0), keys), np.minimum(np.maximum(high, 0), keys)


def attention(q: Array, k: Array, v: Array, options: AttentionOptions) -> Floats:
    """Attention of inputs that fit and are not empty; their rows are runs of elements."""
    job = _Job(q, k, v, options, options.scale_of(q.shape[2]), options.softcap or 0.0)
    heads, queries, _ = q.shape
    shape = heads, queries, v.shape[2]
    out = result_pool().take(4 * math.prod(shape)).view(np.float32).reshape(shape)
    if takes_rows(queries, job.group):
        _few(job, out)
        return out
    uses_i16 = options.sinks is None and can_use_attention_i16(job.q, job.k, job.v)
    rows = min(max(heads * queries // _TILES_WANTED, _LEAST_ROWS), _MOST_ROWS)
    tile_queries = max(1, rows // job.group)
    tiles = -(-queries // tile_queries)
    sights: dict[int, Sight] = {}
    ends: dict[int, Ends] = {}

    def step(number: int) -> None:
        # The last queries see the most keys: they come first, so that no thread is left with them at the end.
        head, first = number % job.k.shape[0], (tiles - 1 - number // job.k.shape[0]) * tile_queries
        stop = min(first + tile_queries, queries)
        if not (uses_i16 and _many_in_i16(job, head, first, stop, sights, out)):
            _many(job, head, first, stop, ends, out)

    in_tiles(job.k.shape[0] * tiles, lambda: step)
    return out


def _many_in_i16(job: _Job, head: int, first: int, stop: int, sights: dict[int, Sight], out: Floats) -> bool:
    """What `_many` does, with products of i16; ``sights`` is kept for other heads.

    Returns False, with nothing done, if a number is not finite.
    """
    if first not in sights:
        rows = job.group * (stop - first)
        numbers = np.minimum(np.arange(-(-rows // PANEL) * PANEL), rows - 1) // job.group + first
        sights[first] = sight(*job.visible(numbers))
    heads = slice(head * job.group, (head + 1) * job.group)
    queries, target = job.q[heads, first:stop], out[heads, first:stop]
    return attention_i16(queries, job.scale, sights[first], job.k[head], job.v[head], job.softcap, target)


def _many(job: _Job, head: int, first: int, stop: int, ends: dict[int, Ends], out: Floats) -> None:
    """The queries ``first`` to ``stop`` - 1 of all heads that share a head of keys, in one call of a kernel.

    ``ends`` is kept for other heads.
    """
    group, size, value_size = job.group, job.q.shape[2], job.v.shape[2]
    rows, padded_values = group * (stop - first), -(-value_size // 16) * 16
    padded = -(-rows // 6) * 6
    heads = slice(head * group, (head + 1) * group)
    if first not in ends:
        numbers = np.minimum(np.arange(padded), rows - 1) // group + first  # the heads of a position are neighbours
        low, high = job.visible(numbers)
        ends[first] = low.astype(np.int32), high.astype(np.int32)
    starts, stops = ends[first]
    state = np.zeros((padded, 2), np.float32)
    state[:, 0] = -np.inf
    if job.options.sinks is not None:
        state[:rows, 0] = np.tile(job.options.sinks[heads], stop - first)
        state[:rows, 1] = 1
    keys, values = job.k[head], job.v[head]
    with borrowing() as borrow:
        queries = borrow(4 * padded * size).view(np.float32).reshape(padded, size)
        np.multiply(
            job.q[heads, first:stop].astype(np.float32, copy=False).transpose(1, 0, 2),
            np.float32(job.scale),
            out=queries[:rows].reshape(stop - first, group, size),
        )
        queries[rows:] = 0
        total = borrow(4 * padded * padded_values).view(np.float32).reshape(padded, padded_values)
        total[:] = 0
        packed_keys, packed_values = borrow(4 * _BLOCK_KEYS * size), borrow(4 * _BLOCK_KEYS * padded_values)
        run(
            *("attention_f32", "attend", address(queries), padded, size, address(starts), address(stops)),
            *(address(keys), keys.strides[0], _DTYPE_NUMBERS[keys.dtype]),
            *(address(values), values.strides[0], _DTYPE_NUMBERS[values.dtype], value_size),
            *(int(starts[0]), int(stops[rows - 1]), bits(job.softcap), address(packed_keys), address(packed_values)),
            *(address(state), address(total)),
        )
        gathered = total[:rows, :value_size].reshape(stop - first, group, value_size)
        out[heads, first:stop] = gathered.transpose(1, 0, 2)


@cache
def row_task(key_name: str, value_name: str) -> tuple[Any, int]:
    """The task of `attention_rows` for keys and values of these types, and its address."""
    function = f"{key_name}_{value_name}"
    return compiled("attention_rows", function, 4), code_address("attention_rows", function, 4)


def takes_rows(queries: int, group: int) -> bool:
    """Whether so many queries are so few that `attention_rows` is faster than tiles of them."""
    return queries * group < _MANY_ROWS


def row_job(shape: tuple[int, int, int, int], memory: tuple[int, int], options: AttentionOptions) -> tuple[int, ...]:
    """The numbers of a task of `attention_rows` after those of queries and results.

    ``shape``: queries of a head, heads that share a head of keys, elements of a query and of a value. ``memory``: the
    addresses of place and state. The sinks of the options must outlive the task.
    """
    scale, cap = bits(options.scale_of(shape[2])), bits(options.softcap or 0.0)
    range_of_keys = options.window or -(options.chunk or 0)
    sinks = 0 if options.sinks is None else address(options.sinks)
    return *shape, *memory, range_of_keys, int(options.causal), scale, cap, sinks


def _few(job: _Job, out: Floats) -> None:
    q = job.q if job.q.dtype == np.float32 else job.q.astype(np.float32)
    keys, values = job.k, job.v
    place = np.array(
        [*(address(keys), keys.strides[0], address(values), values.strides[0]), keys.strides[1], values.strides[1]],
        np.int64,
    )
    state = np.array([job.options.offset, keys.shape[1]], np.int64)
    shape = q.shape[1], job.group, q.shape[2], values.shape[2]
    numbers = row_job(shape, (address(place), address(state)), job.options)
    array = np.array([address(q), *q.strides[:2], address(out), *out.strides[:2], *numbers], np.int64)
    row_bytes, rows = 4 * keys.shape[1] * (q.shape[2] + values.shape[2]), q.shape[0] * q.shape[1]
    kernel, code = row_task(DTYPE_NAMES[keys.dtype], DTYPE_NAMES[values.dtype])
    nanoseconds = rows * row_bytes * NANOSECONDS_PER_BYTE
    run_together(kernel, code, address(array), 0, rows, max(1, _LEAST_BYTES // row_bytes), nanoseconds=nanoseconds)
