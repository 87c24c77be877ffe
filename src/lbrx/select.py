"""The k-th largest element, exact, without sorting: histograms of sortable keys in streaming passes.

A sample tells between which keys the k-th largest almost surely lies; one pass counts what is above and collects
what is between. Where the sample misleads, or none can be taken, passes count elements by the top bits of their keys
and look further into the bin that holds the k-th largest, until few enough are left to be collected. The result is
the same either way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.destinations import ArrayDestination
from lbrx.devices.cpu.constants import BINS, HISTOGRAM_BITS
from lbrx.devices.cpu.registers import tile_type
from lbrx.devices.cpu.run import CollectState, HistogramState
from lbrx.devices.device import run_pass
from lbrx.errors import FileError
from lbrx.expr import Counter, Expr, KthSearch, Scalar, apply
from lbrx.fuse import Known, KthResult, SinkRequest, fuse
from lbrx.scalars import scalar_value
from lbrx.shape import Layout, Shape
from lbrx.views import reshaped, sliced

MAX_COLLECTED = 4 << 20  # elements: 64 MiB of keys and indices
SAMPLED_FROM = 1 << 20  # elements: below that, histograms are cheap enough
SAMPLE_RUN = 16  # neighbouring elements taken together
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
    def keys(self) -> tuple[int, int, int]:
        """What the search looks at: searches in the same keys of the same elements share their histogram."""
        return id(self.task.arg), self.low, self.width_bits

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
    searches = [_start(task) for task in tasks]
    if math.prod(space) >= SAMPLED_FROM:
        sampled = _sampled(searches, known)
        _collect(space, sampled, known)
        searches = [search for search in searches if id(search.task) not in known.searches]
    _finish(space, searches, known)


def _start(task: KthSearch) -> _Search:
    kind = tile_type(task.arg.dtype.compute_name)
    bits = 64 if kind in ("f64", "i64") else 32
    return _Search(task, kind, -(1 << (bits - 1)), bits, task.k, math.prod(task.arg.shape))


def _finish(space: Shape, searches: list[_Search], known: Known) -> None:
    while wide := [search for search in searches if search.is_wide and not search.is_done]:
        _narrow(space, wide, known)
    for search in (search for search in searches if search.is_wide):
        index = _index_among_equals(space, search, known) if search.task.needs_index else -1
        _put(search, search.low, index, known)
    left = [search for search in searches if not search.is_wide]
    _collect(space, [(search, search.low, search.high, search.place) for search in left], known)
    if any(id(search.task) not in known.searches for search in searches):
        raise FileError("an input changed while it was being read: a second pass found other values than the first")


Interval = tuple[_Search, int, int, int]  # a search, its lowest and highest key, and k among the keys up to the highest


def _sampled(searches: list[_Search], known: Known) -> list[Interval]:
    """For each search of which a sample can be taken, an interval of keys that should hold the k-th largest."""
    elements = math.prod(searches[0].task.arg.shape)
    runs = min(max(elements // 256, 1 << 15), 1 << 20) // SAMPLE_RUN
    views = [(search, _sample(search.task.arg, elements, runs)) for search in searches]
    chosen = [(search, sample) for search, sample in views if sample is not None]
    if not chosen:
        return []
    outputs = [ArrayDestination(sample.dtype, runs * SAMPLE_RUN) for _, sample in chosen]
    requests = [SinkRequest("store", sample.dtype, (sample,)) for _, sample in chosen]
    run_pass(fuse((runs, SAMPLE_RUN), requests, known, scalar_value), list(outputs))
    return [
        _interval(search, output.array((runs * SAMPLE_RUN,)), elements)
        for (search, _), output in zip(chosen, outputs, strict=True)
    ]


def _sample(arg: Expr, elements: int, runs: int) -> Expr | None:
    """Keys of runs of elements spread over the tensor, or None where that is not a view."""
    if not arg.is_simple:
        return None
    spacing = elements // runs
    flat = sliced(reshaped(arg, (elements,)), slice(0, runs * spacing))
    sample = sliced(reshaped(flat, (runs, spacing)), (slice(None), slice(0, SAMPLE_RUN)))
    return apply("order_key", sample) if sample.is_simple else None


def _interval(search: _Search, keys: npt.NDArray[Any], elements: int) -> Interval:
    """Between which keys the wanted one lies, almost surely: six standard deviations of independent samples."""
    share = search.place / elements
    expected = (1 - share) * keys.size
    margin = 6 * math.sqrt(keys.size * share * (1 - share)) + SAMPLE_RUN
    low, high = int(expected - margin), int(expected + margin)
    ordered = np.sort(keys)
    lowest = int(ordered[low]) if low >= 0 else search.low
    highest = int(ordered[high]) if high < keys.size else search.high
    return search, lowest, highest, search.place


def _narrow(space: Shape, searches: list[_Search], known: Known) -> None:
    """One pass that counts the keys of every search by their next bits."""
    states: dict[tuple[int, int, int], HistogramState] = {}
    requests = []
    for search in searches:
        shift = max(search.width_bits - HISTOGRAM_BITS, 0)
        if search.keys not in states:
            states[search.keys] = HistogramState(shift, search.low >> shift, np.zeros(BINS, np.int64))
            requests.append(SinkRequest("histogram", search.task.arg.dtype.compute, (search.task.arg,)))
    run_pass(fuse(space, requests, known, scalar_value), list(states.values()))
    for search, state in [(search, states[search.keys]) for search in searches]:
        bins = 1 << (search.width_bits - state.shift)  # a narrow interval ends before the table does
        from_largest = np.cumsum(state.counts[:bins][::-1])
        step = int(np.searchsorted(from_largest, search.place))
        chosen = bins - 1 - step
        search.place -= int(from_largest[step - 1]) if step else 0
        search.inside = int(state.counts[chosen])
        search.low = (state.first + chosen) << state.shift
        search.width_bits = state.shift


def _collect(space: Shape, intervals: list[Interval], known: Known) -> None:
    """One pass that gathers the keys of every interval, and the choice among them where the k-th is inside."""
    if not intervals:
        return
    states = [CollectState(low, high, MAX_COLLECTED) for _, low, high, _ in intervals]
    requests = [SinkRequest("collect", s.task.arg.dtype.compute, (s.task.arg,)) for s, _, _, _ in intervals]
    run_pass(fuse(space, requests, known, scalar_value), list(states))
    for (search, _, _, place), state in zip(intervals, states, strict=True):
        if search.inside == math.prod(space):  # nothing has been narrowed: k counts from the very largest
            place -= state.above
        if not 1 <= place <= state.found or state.found > state.limit:
            continue
        order = sorted((part for part in range(len(state.keys)) if state.keys[part].size), key=_first_place(state))
        keys = np.concatenate([state.keys[part] for part in order])
        places = np.concatenate([state.places[part] for part in order])
        key, index = _chosen(keys, places, place)
        _put(search, key, index, known)


def _first_place(state: CollectState) -> Callable[[int], int]:
    return lambda part: int(state.places[part][0])


def _chosen(keys: npt.NDArray[Any], places: npt.NDArray[Any], place: int) -> tuple[int, int]:
    """Key and place of the ``place``-th largest of collected keys, whose places ascend; equals count by places."""
    key = _guess(keys, place) if keys.size > FEW else None
    if key is None:
        key = int(np.partition(keys, keys.size - place)[keys.size - place])
    rank = place - 1 - int(np.count_nonzero(keys > key))
    return key, int(places[keys == key][rank])


def _guess(keys: npt.NDArray[Any], place: int) -> int | None:
    """The wanted key from a sample: half-precision weights have few distinct differences, so it is often right."""
    sample = np.sort(keys[:: keys.size // 4096])
    key = int(sample[min(int((1 - place / keys.size) * sample.size), sample.size - 1)])
    above = int(np.count_nonzero(keys > key))
    return key if above < place <= above + int(np.count_nonzero(keys == key)) else None


def _put(search: _Search, key: int, index: int, known: Known) -> None:
    carrier = np.int32 if search.kind in ("f32", "i32") else np.int64
    value = values_of_keys(np.array([key], carrier), search.kind)[0]
    kind = search.task.arg.dtype.compute.numpy.type
    known.searches[id(search.task)] = KthResult(kind(value), carrier(key), np.int64(index))


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
    return -int(known.searches[id(indices)].value)
