"""The k-th largest element, exact, without sorting: histograms of sortable keys in streaming passes.

A sample tells between which keys the k-th largest almost surely lies; one pass counts what is above and collects
what is between. Where the sample misleads, or none can be taken, passes count elements by the top bits of their keys
and look further into the bin that holds the k-th largest, until few enough are left to be collected. The result is
the same either way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lbrx.base.fast_dataclass import dataclass
from lbrx.engine.bind import Known, KthResult, bind
from lbrx.engine.block_sizes import BINS, HISTOGRAM_BITS, TILE
from lbrx.engine.destination import ArrayDestination, CollectState, HistogramState
from lbrx.engine.device import pass_device, run_pass
from lbrx.engine.fuse import Pass, SinkRequest, fuse
from lbrx.engine.program import tile_type
from lbrx.errors import FileError
from lbrx.memory import budget
from lbrx.memory.scratch import borrowing
from lbrx.tensors.coded import stored_key
from lbrx.tensors.expr import Counter, Expr, KthSearch, Map, Scalar, Stored, apply
from lbrx.tensors.shape import Layout, Shape
from lbrx.tensors.storage import Bytes
from lbrx.tensors.views import reshaped, sliced

MAX_COLLECTED = 4 << 20  # elements: 64 MiB of keys and indices
SAMPLED_FROM = 1 << 20  # elements: below that, histograms are cheap enough
SAMPLE_RUN = 16  # neighbouring elements taken together
KEY_OF_INFINITY = 0x7F800000  # of a float32
FEW = 1 << 16  # elements that are sorted out faster than another pass is run
MOST_PASSES = 64  # that are kept with a plan
COLLECTED_BITS = 12  # of keys, by which they are counted
Borrow = Callable[[int], Bytes]
Ints = npt.NDArray[np.int64]


@dataclass(slots=True)
class _Search:
    """A search under way: the keys from ``low`` on, ``width_bits`` wide, hold the wanted one at ``rank``."""

    task: KthSearch
    key_type: str
    low: int
    width_bits: int
    rank: int  # counted from the largest of the keys in the interval, from 1
    inside: int  # elements in the interval

    @property
    def high(self) -> int:
        return self.low + (1 << self.width_bits) - 1

    @property
    def keys(self) -> tuple[int, int, int]:
        """What the search looks at: searches in the same keys of the same elements share their histogram."""
        return id(self.task.arg), self.low, self.width_bits

    def is_in(self, known: Known) -> bool:
        """Whether the result is known."""
        return id(self.task) in known.searches

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
        missed = [interval for interval in sampled if interval.guess is not None and not interval.search.is_in(known)]
        _collect(space, [interval._replace(guess=None) for interval in missed], known)
        searches = [search for search in searches if not search.is_in(known)]
    _finish(space, searches, known)


def _start(task: KthSearch) -> _Search:
    key_type = tile_type(task.arg.dtype.compute_name)
    bits = 64 if key_type in ("f64", "i64") else 32
    return _Search(task, key_type, -(1 << (bits - 1)), bits, task.k, math.prod(task.arg.shape))


def _finish(space: Shape, searches: list[_Search], known: Known) -> None:
    while wide := [search for search in searches if search.is_wide and not search.is_done]:
        _narrow(space, wide, known)
    for search in (search for search in searches if search.is_wide):
        index = _index_among_equals(space, search, known) if search.task.needs_index else -1
        _put(search, search.low, index, known)
    left = [search for search in searches if not search.is_wide]
    _collect(space, [_Interval(search, search.low, search.high) for search in left], known)
    if not all(search.is_in(known) for search in searches):
        raise FileError("an input changed while it was being read: a second pass found other values than the first")


class _Interval(NamedTuple):
    """The keys from ``low`` to ``high``, which should hold the wanted one; ``guess``: which of them it probably is."""

    search: _Search
    low: int
    high: int
    guess: int | None = None


def _sampled(searches: list[_Search], known: Known) -> list[_Interval]:
    """For each search of which a sample can be taken, an interval of keys that should hold the k-th largest."""
    args = {id(search.task.arg): search.task.arg for search in searches}
    samples = {number: _sample(arg) for number, arg in args.items()}
    by_shape: dict[Shape, dict[int, Expr]] = {}
    for number, sample in samples.items():
        if sample is not None and _is_ready(sample, known):
            by_shape.setdefault(sample.shape, {})[number] = sample
    ordered: dict[int, npt.NDArray[Any]] = {}
    for shape, group in by_shape.items():
        outputs = [ArrayDestination(sample.dtype, math.prod(shape)) for sample in group.values()]
        requests = [SinkRequest("store", sample.dtype, (sample,)) for sample in group.values()]
        run_pass(bind(fuse(shape, requests), known), list(outputs))
        for number, output in zip(group, outputs, strict=True):
            ordered[number] = np.sort(output.array((math.prod(shape),)))
    chosen = [search for search in searches if id(search.task.arg) in ordered]
    return [_interval(search, ordered[id(search.task.arg)]) for search in chosen]


def _sample(arg: Expr) -> Expr | None:
    """Keys of elements spread over a tensor: runs of neighbours, or of a matrix some rows and columns."""
    elements = math.prod(arg.shape)
    wanted = min(max(elements // 256, 1 << 15), 1 << 20)
    if arg.is_simple:
        runs = wanted // SAMPLE_RUN
        spacing = (elements // runs - 1) | 1  # odd, so that runs do not begin in the same few columns
        flat = sliced(reshaped(arg, (elements,)), slice(0, runs * spacing))
        return apply("order_key", sliced(reshaped(flat, (runs, spacing)), (slice(None), slice(0, SAMPLE_RUN))))
    if len(arg.shape) != 2:
        return None
    apart = slice(None, None, (math.isqrt(elements // wanted) - 1) | 1)
    return apply("order_key", sliced(arg, (apart, apart)))


def _is_ready(expr: Expr, known: Known) -> bool:
    """Whether one pass can compute an expression: what has to be stored before is."""
    if isinstance(expr, Map):
        return all(_is_ready(arg, known) for arg in expr.args)
    key = stored_key(expr.inner if isinstance(expr, Stored) else expr)
    return expr.is_simple or not expr.shape or key in known.stored or key in known.streamed


def _interval(search: _Search, ordered: npt.NDArray[Any]) -> _Interval:
    """Between which keys the wanted one lies, almost surely: six standard deviations of independent samples.

    Differences of half-precision weights have few distinct values: where all keys of a sample within one standard
    deviation are one, that is the guess.
    """
    share = search.rank / search.inside
    expected = (1 - share) * ordered.size
    deviation = math.sqrt(ordered.size * share * (1 - share))
    margin = 6 * deviation + SAMPLE_RUN
    low, high = int(expected - margin), int(expected + margin)
    lowest = int(ordered[low]) if low >= 0 else search.low
    highest = int(ordered[high]) if high < ordered.size else search.high
    last = ordered.size - 1
    near, far = (int(ordered[min(max(int(expected + step), 0), last)]) for step in (-deviation - 1, deviation + 1))
    can_guess = (
        near == far
        and (abs(near) <= KEY_OF_INFINITY if search.key_type == "f32" else search.key_type == "i32")
        and (search.task.arg.is_simple or not search.task.needs_index)  # else the index is not found by a view
    )
    return _Interval(search, lowest, highest, near if can_guess else None)


def _narrow(space: Shape, searches: list[_Search], known: Known) -> None:
    """One pass that counts the keys of every search by their next bits."""
    states: dict[tuple[int, int, int], HistogramState] = {}
    requests = []
    for search in searches:
        shift = max(search.width_bits - HISTOGRAM_BITS, 0)
        if search.keys not in states:
            states[search.keys] = HistogramState(shift, search.low >> shift, np.zeros(BINS, np.int64))
            requests.append(SinkRequest("histogram", search.task.arg.dtype.compute, (search.task.arg,)))
    run_pass(bind(_fused(space, requests, known), known), list(states.values()))
    for search, state in [(search, states[search.keys]) for search in searches]:
        bins = 1 << (search.width_bits - state.shift)  # a narrow interval ends before the table does
        from_largest = np.cumsum(state.counts[:bins][::-1])
        step = int(np.searchsorted(from_largest, search.rank))
        chosen = bins - 1 - step
        search.rank -= int(from_largest[step - 1]) if step else 0
        search.inside = int(state.counts[chosen])
        search.low = (state.first + chosen) << state.shift
        search.width_bits = state.shift


def _collect(space: Shape, intervals: list[_Interval], known: Known) -> None:
    """One pass that gathers the keys of every interval, and the choice among them where the k-th is inside.

    Of a guess, only counts are gathered: how many elements of each tile have this key.
    """
    if not intervals:
        return
    args = [each.search.task.arg for each in intervals]
    requests = [SinkRequest("collect", arg.dtype.compute, (arg,)) for arg in args]
    bound = bind(_fused(space, requests, known), known)
    if not pass_device(bound, []).counts_keys:
        intervals = [each._replace(guess=None) for each in intervals]
    most_bytes = 4 * 8 * MAX_COLLECTED * len(intervals)  # keys and indices, of chunks and joined
    with borrowing() as pooled:
        borrow = pooled if most_bytes <= budget().limit_bytes // 4 else _unpooled
        states = [_collecting(each, borrow) for each in intervals]
        run_pass(bound, list(states))
        for interval, state in zip(intervals, states, strict=True):
            _choose(space, interval, state, known, borrow)


def _fused(space: Shape, requests: list[SinkRequest], known: Known) -> Pass:
    """The pass of some requests, kept with the plan: searches over the same structure share it."""
    args = tuple(request.args[0] for request in requests)
    key = (requests[0].op, *map(id, args))
    if key not in known.passes and len(known.passes) < MOST_PASSES:
        known.passes[key] = fuse(space, requests), args  # which stay alive, so that their identities stay theirs
    return known.passes[key][0] if key in known.passes else fuse(space, requests)


def _unpooled(nbytes: int) -> Bytes:
    return np.empty(nbytes, np.uint8)


def _collecting(interval: _Interval, borrow: Borrow) -> CollectState:
    low, high, guess = interval.low, interval.high, interval.guess
    if guess is not None:
        low, high = guess + 1, guess
    return CollectState(low, high, MAX_COLLECTED, keeps_indices=interval.search.task.needs_index, borrow=borrow)


def _choose(space: Shape, interval: _Interval, state: CollectState, known: Known, borrow: Borrow) -> None:
    """The result of a search from what was collected, if it is there."""
    search = interval.search
    rank = search.rank
    if search.inside == math.prod(space):  # nothing has been narrowed: k counts from the very largest
        rank -= state.above
    if rank < 1 or not state.collected or state.collected > state.limit:
        return
    keys, indices = _joined(state.keys, state, borrow), None
    if state.keeps_indices:
        indices = _joined(state.indices, state, borrow)
    if interval.guess is not None:
        _put_guess(search, interval.guess, keys, indices, rank, known)
    elif rank <= state.collected:
        key = _nth_largest(keys, rank)
        _put(search, key, -1 if indices is None else _index_of(key, keys, indices, rank), known)


def _joined(parts: list[Ints], state: CollectState, borrow: Borrow) -> Ints:
    """What the chunks brought, in the order of the tensor if indices were kept."""
    order = [part for part in range(len(parts)) if parts[part].size]
    if len(order) == 1:
        return parts[order[0]]
    if state.keeps_indices:
        order.sort(key=lambda part: int(state.indices[part][0]))
    chosen = [parts[part] for part in order]
    return np.concatenate(chosen, out=borrow(sum(part.nbytes for part in chosen)).view(np.int64))


def _put_guess(search: _Search, key: int, counts: Ints, starts: Ints | None, rank: int, known: Known) -> None:
    """The guess as the result, if the ``rank``-th of its equals is among those that were counted."""
    counted = np.cumsum(counts)
    if rank > int(counted[-1]):
        return
    index = -1
    if starts is not None:
        tile = int(np.searchsorted(counted, rank))
        start, before = int(starts[tile]), int(counted[tile - 1]) if tile else 0
        arg = search.task.arg
        elements = math.prod(arg.shape)
        view = apply("order_key", sliced(reshaped(arg, (elements,)), slice(start, min(start + TILE, elements))))
        output = ArrayDestination(view.dtype, view.shape[0])
        run_pass(bind(fuse(view.shape, [SinkRequest("store", view.dtype, (view,))]), known), [output])
        index = start + int(np.flatnonzero(output.array(view.shape) == key)[rank - before - 1])
    _put(search, key, index, known)


def _nth_largest(keys: Ints, rank: int) -> int:
    """The ``rank``-th largest of collected keys: counted by their top bits, then found among those that share them."""
    lowest = int(keys.min())
    shift = max((int(keys.max()) - lowest).bit_length() - COLLECTED_BITS, 0)
    bins = keys >> shift
    bins -= lowest >> shift
    counts = np.bincount(bins)
    from_largest = np.cumsum(counts[::-1])
    step = int(np.searchsorted(from_largest, rank))
    near = keys[bins == counts.size - 1 - step]
    wanted = int(from_largest[step]) - rank  # how many of them are smaller
    return int(np.partition(near, wanted)[wanted])


def _index_of(key: int, keys: Ints, indices: Ints, rank: int) -> int:
    """Where the ``rank``-th largest of the keys is, which is ``key``; indices ascend, and equals count by indices."""
    position = rank - 1 - int(np.count_nonzero(keys > key))
    return int(indices[keys == key][position])


def _put(search: _Search, key: int, index: int, known: Known) -> None:
    carrier = np.int32 if search.key_type in ("f32", "i32") else np.int64
    value = values_of_keys(np.array([key], carrier), search.key_type)[0]
    number_type = search.task.arg.dtype.compute.numpy.type
    known.searches[id(search.task)] = KthResult(number_type(value), carrier(key), np.int64(index))


def values_of_keys(keys: npt.NDArray[Any], key_type: str) -> npt.NDArray[Any]:
    """The values that sortable keys stand for (see `lbrx.devices.cpu.kernels.selection`)."""
    if key_type not in ("f32", "f64"):
        return keys
    largest = np.iinfo(keys.dtype).max
    bits = np.where(keys < 0, keys ^ largest, keys).astype(keys.dtype)
    values: npt.NDArray[Any] = bits.view(np.float32 if key_type == "f32" else np.float64)
    return np.where(keys == largest, np.asarray(np.nan, values.dtype), values)


def _index_among_equals(space: Shape, search: _Search, known: Known) -> int:
    """The index of the ``rank``-th of very many equal elements: a search among their negated indices."""
    carrier = np.int32 if search.key_type in ("f32", "i32") else np.int64
    value = values_of_keys(np.array([search.low], carrier), search.key_type)[0].item()
    arg = search.task.arg
    is_equal: Expr = apply("isnan", arg) if value != value else apply("eq", arg, Scalar(value))
    negated = apply("neg", Counter("index", Layout.contiguous(space)))
    bits = max(math.prod(space).bit_length(), 1)
    outside = Scalar(-(1 << 62))
    indices = KthSearch(apply("where", is_equal, negated, outside), search.rank)
    _finish(space, [_Search(indices, "i64", -(1 << bits), bits + 1, search.rank, search.inside)], known)
    return -int(known.searches[id(indices)].value)
