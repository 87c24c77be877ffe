"""The k-th largest element, exact, without sorting: histograms of sortable keys in streaming passes.

A pass counts elements by the top bits of their keys; the bin that holds the k-th largest is looked into further.
As soon as few enough elements are left they are collected, with their indices, and sorted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.devices.cpu.constants import BINS, HISTOGRAM_BITS
from lbrx.devices.cpu.registers import tile_type
from lbrx.devices.cpu.run import CollectState, HistogramState, run_pass
from lbrx.expr import Counter, Expr, KthSearch, Scalar, apply
from lbrx.fuse import Known, SinkRequest, fuse
from lbrx.scalars import scalar_value
from lbrx.shape import Layout, Shape

MAX_COLLECTED = 2 << 20  # elements: 32 MiB of keys and indices
FEW = 1 << 16  # elements that are sorted out faster than another pass is run


@dataclass(slots=True)
class _Search:
    """A search under way: the keys from ``low`` on, ``width_bits`` wide, hold the wanted one at ``place``."""

    task: KthSearch
    kind: str
    low: int
    width_bits: int
    place: int  # counted from the largest of the keys in the interval, from 1
    inside: int  # elements in the interval

    @property
    def high(self) -> int:
        return self.low + (1 << self.width_bits) - 1

    @property
    def is_done(self) -> bool:
        """Whether only the index is left to find, if that."""
        return self.width_bits == 0

    @property
    def is_wide(self) -> bool:
        """Whether another histogram costs less than collecting what is inside."""
        elements = math.prod(self.task.arg.shape)
        return self.inside > MAX_COLLECTED or (self.inside > FEW and self.inside * 16 > elements)


def find_kth(space: Shape, tasks: list[KthSearch], known: Known) -> None:
    """Run the searches over one space together and put value and index of each into ``known``."""
    _finish(space, [_start(task) for task in tasks], known)


def _start(task: KthSearch) -> _Search:
    kind = tile_type(task.arg.dtype.compute_name)
    bits = 64 if kind in ("f64", "i64") else 32
    return _Search(task, kind, -(1 << (bits - 1)), bits, task.k, math.prod(task.arg.shape))


def _finish(space: Shape, searches: list[_Search], known: Known) -> None:
    while wide := [search for search in searches if search.is_wide and not search.is_done]:
        _narrow(space, wide, known)
    crowded = [search for search in searches if search.is_wide]
    for search in crowded:
        index = _index_among_equals(space, search, known) if search.task.needs_index else -1
        _put(search, search.low, index, known)
    _collect(space, [search for search in searches if search not in crowded], known)


def _narrow(space: Shape, searches: list[_Search], known: Known) -> None:
    """One pass that counts the keys of every search by their next bits."""
    requests, states = [], []
    for search in searches:
        shift = max(search.width_bits - HISTOGRAM_BITS, 0)
        states.append(HistogramState(shift, search.low >> shift, np.zeros(BINS, np.int64)))
        requests.append(SinkRequest("histogram", search.task.arg.dtype.compute, (search.task.arg,)))
    run_pass(fuse(space, requests, known, scalar_value), list(states))
    for search, state in zip(searches, states, strict=True):
        bins = 1 << (search.width_bits - state.shift)  # a narrow interval ends before the table does
        from_largest = np.cumsum(state.counts[:bins][::-1])
        step = int(np.searchsorted(from_largest, search.place))
        chosen = bins - 1 - step
        search.place -= int(from_largest[step - 1]) if step else 0
        search.inside = int(state.counts[chosen])
        search.low = (state.first + chosen) << state.shift
        search.width_bits = state.shift


def _collect(space: Shape, searches: list[_Search], known: Known) -> None:
    """One pass that gathers what is left of every search, and the choice among it."""
    if not searches:
        return
    states = [CollectState(s.low, s.high, np.empty(s.inside, np.int64), np.empty(s.inside, np.int64)) for s in searches]
    requests = [SinkRequest("collect", s.task.arg.dtype.compute, (s.task.arg,)) for s in searches]
    run_pass(fuse(space, requests, known, scalar_value), list(states))
    for search, state in zip(searches, states, strict=True):
        keys, places = state.keys, state.places
        key = int(np.partition(keys, keys.size - search.place)[keys.size - search.place])
        equals = places[keys == key]
        rank = search.place - 1 - int(np.count_nonzero(keys > key))
        _put(search, key, int(np.partition(equals, rank)[rank]), known)


def _put(search: _Search, key: int, index: int, known: Known) -> None:
    carrier = np.int32 if search.kind in ("f32", "i32") else np.int64
    value = values_of_keys(np.array([key], carrier), search.kind)[0]
    known.searches[id(search.task)] = (search.task.arg.dtype.compute.numpy.type(value), np.int64(index))


def values_of_keys(keys: npt.NDArray[Any], kind: str) -> npt.NDArray[Any]:
    """The values that sortable keys stand for (see devices/cpu/selection.py)."""
    if kind not in ("f32", "f64"):
        return keys
    largest = np.iinfo(keys.dtype).max
    bits = np.where(keys < 0, keys ^ largest, keys).astype(keys.dtype)
    values: npt.NDArray[Any] = bits.view(np.float32 if kind == "f32" else np.float64)
    return np.where(keys == largest, np.asarray(np.nan, values.dtype), values)


def _index_among_equals(space: Shape, search: _Search, known: Known) -> int:
    """The index of the ``place``-th of very many equal elements: a search among their negated indices."""
    carrier = np.int32 if search.kind in ("f32", "i32") else np.int64
    value = values_of_keys(np.array([search.low], carrier), search.kind)[0].item()
    arg = search.task.arg
    is_equal: Expr = apply("isnan", arg) if value != value else apply("eq", arg, Scalar(value))
    negated = apply("neg", Counter("index", Layout.contiguous(space)))
    bits = max(math.prod(space).bit_length(), 1)
    outside = Scalar(-(1 << 62))
    indices = KthSearch(apply("where", is_equal, negated, outside), search.place)
    _finish(space, [_Search(indices, "i64", -(1 << bits), bits + 1, search.place, search.inside)], known)
    return -int(known.searches[id(indices)][0])
