"""Attention without a matrix of all scores: tiles of queries times tiles of keys, with a softmax that runs along.

`lbrx.ops.attention` describes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.base.fast_dataclass import dataclass
from lbrx.devices.cpu.build.native import address, bits, run
from lbrx.devices.cpu.ops.attention_i16 import PANEL, Sight, attention_i16, can_use_attention_i16, sight
from lbrx.engine.arrays import Floats
from lbrx.engine.attention_options import DTYPE_NAMES, AttentionOptions
from lbrx.engine.blas import in_tiles, one_blas_thread, product
from lbrx.memory.scratch import borrowing, result_pool
from lbrx.tensors.storage import Bytes

Array = npt.NDArray[Any]
_DTYPE_NUMBERS = {dtype_name: number for number, dtype_name in enumerate(DTYPE_NAMES)}
_LEAST_ROWS, _MOST_ROWS, _TILES_WANTED = 384, 2048, 16
_MANY_ROWS = 24
_BLOCK_KEYS = 256
_TILE_SCORES = 32 << 10
_LEAST_KEYS, _MOST_KEYS = 512, 4096


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

    def key_range(self, first: int, stop: int) -> tuple[int, int]:
        """The keys that queries ``first`` to ``stop`` - 1 can see, all together."""
        low, high = self.visible(np.array([first, stop - 1]))
        return int(low[0]), int(high[1])

    def visible(self, queries: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The first and one past the last key that each query sees."""
        positions, keys = queries + self.options.offset, self.k.shape[1]
        high = positions + 1 if self.options.causal else np.full_like(positions, keys)
        low = np.zeros_like(positions)
        if self.options.window is not None:
            low = positions - self.options.window + 1
            high = np.minimum(high, positions + self.options.window)
        return np.clip(low, 0, keys), np.clip(high, 0, keys)


def attention(q: Array, k: Array, v: Array, options: AttentionOptions) -> Floats:
    """Attention of inputs that fit and are not empty; their rows are runs of elements."""
    job = _Job(q, k, v, options, options.scale_of(q.shape[2]), options.softcap or 0.0)
    heads, queries, _ = q.shape
    shape = heads, queries, v.shape[2]
    out = result_pool().take(4 * math.prod(shape)).view(np.float32).reshape(shape)
    uses_i16 = can_use_attention_i16(job.q, job.k, job.v)
    rows = min(max(heads * queries // _TILES_WANTED, _LEAST_ROWS), _MOST_ROWS)
    tile_queries = max(1, rows // job.group)
    tiles = -(-queries // tile_queries)
    sights: dict[int, Sight] = {}

    def step(number: int) -> None:
        # The last queries see the most keys: they come first, so that no thread is left with them at the end.
        head, first = number % job.k.shape[0], (tiles - 1 - number // job.k.shape[0]) * tile_queries
        stop = min(first + tile_queries, queries)
        if (stop - first) * job.group < _MANY_ROWS:
            _few(job, head, first, stop, out)
        elif not (uses_i16 and _many_in_i16(job, head, first, stop, sights, out)):
            _many(job, head, first, stop, out)

    with one_blas_thread():
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


def _many(job: _Job, head: int, first: int, stop: int, out: Floats) -> None:
    """The queries ``first`` to ``stop`` - 1 of all heads that share a head of keys, in one call of a kernel."""
    group, size, value_size = job.group, job.q.shape[2], job.v.shape[2]
    rows, padded_values = group * (stop - first), -(-value_size // 16) * 16
    padded = -(-rows // 6) * 6
    low, high = job.key_range(first, stop)
    heads = slice(head * group, (head + 1) * group)
    numbers = np.minimum(np.arange(padded), rows - 1) // group + first  # the heads of a position are neighbours
    starts, stops = (np.ascontiguousarray(ends, np.int32) for ends in job.visible(numbers))
    state = np.zeros((padded, 2), np.float32)
    state[:, 0] = -np.inf
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
            *(low, high, bits(job.softcap), address(packed_keys), address(packed_values)),
            *(address(state), address(total)),
        )
        gathered = total[:rows, :value_size].reshape(stop - first, group, value_size)
        out[heads, first:stop] = gathered.transpose(1, 0, 2)


def _few(job: _Job, head: int, first: int, stop: int, out: Floats) -> None:
    """The same for a few queries, where packing keys would take longer than multiplying them."""
    queries, rows = stop - first, job.group * (stop - first)
    low, high = job.key_range(first, stop)
    most_keys = min(max(_LEAST_KEYS, _TILE_SCORES // rows), _MOST_KEYS)
    with borrowing() as borrow:
        tile = _Tile(job, rows, min(most_keys, high - low), borrow)
        for member in range(job.group):
            part = tile.queries[member * queries : (member + 1) * queries]
            _widen(job.q[head * job.group + member, first:stop], part)
        tile.queries *= np.float32(job.scale)
        starts, ends = job.visible(np.arange(first, stop))
        for start in range(low, high, most_keys):
            end = min(start + most_keys, high)
            ranges = np.empty((job.group, queries, 2), np.int32)
            np.clip(starts - start, 0, end - start, out=ranges[:, :, 0], casting="unsafe")
            np.clip(ends - start, 0, end - start, out=ranges[:, :, 1], casting="unsafe")
            tile.add(job.k[head, start:end], job.v[head, start:end], ranges)
        run("online_softmax", "finish", address(tile.total), address(tile.state), rows, job.v.shape[2])
        for member in range(job.group):
            out[head * job.group + member, first:stop] = tile.total[member * queries : (member + 1) * queries]


class _Tile:
    """Some queries, what they have gathered so far, and scratch for their scores."""

    def __init__(self, job: _Job, rows: int, most_keys: int, borrow: Callable[[int], Bytes]) -> None:
        def scratch(height: int, width: int) -> Floats:
            return borrow(4 * max(height * width, 1)).view(np.float32)[: height * width].reshape(height, width)

        size, value_size = job.q.shape[2], job.v.shape[2]
        self._cap_bits = bits(job.softcap)
        self.queries = scratch(rows, size)
        self.total, self._added = scratch(rows, value_size), scratch(rows, value_size)
        self.total[:] = 0
        self.state = np.zeros((rows, 3), np.float32)
        self.state[:, 0] = -np.inf
        self._scores = scratch(rows, -(-most_keys // 16) * 16)
        self._keys = None if job.k.dtype == np.float32 else scratch(most_keys, size)
        self._values = None if job.v.dtype == np.float32 else scratch(most_keys, value_size)

    def add(self, keys: Array, values: Array, ranges: npt.NDArray[np.int32]) -> None:
        """Look at some keys: ``ranges`` has the first and one past the last of them that each query sees."""
        rows, stride, count = *self._scores.shape, keys.shape[0]
        scores = self._scores[:, :count]
        product(self.queries, _widened(keys, self._keys).T, scores)
        state = address(ranges), address(self.state), self._cap_bits
        run("online_softmax", "weigh", address(scores), rows, count, stride, *state)
        product(scores, _widened(values, self._values), self._added)
        numbers = address(self.total), address(self._added), address(self.state)
        run("online_softmax", "accumulate", *numbers, rows, self.total.shape[1])


def _widen(values: Array, out: Floats) -> None:
    """Rows of any of the types, as f32 into an array."""
    dtype_name = DTYPE_NAMES[values.dtype]
    if dtype_name == "f32":
        out[:] = values
    else:
        run("half_rows", dtype_name, address(values), values.strides[0], address(out), *values.shape)


def _widened(values: Array, scratch: Floats | None) -> Floats:
    if scratch is None:
        return values
    _widen(values, scratch[: values.shape[0]])
    return scratch[: values.shape[0]]
