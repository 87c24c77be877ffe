"""Running a bound pass on the CPU: chunks of the space, handed to threads, each calling the compiled kernel."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.base.threads import run_chunks, split_range
from lbrx.devices.cpu.build.kernel_cache import EXCEPTION_ADDRESS, RESULT_ADDRESS, CompiledProgram, compiled
from lbrx.devices.cpu.build.team import check_status, run_together
from lbrx.devices.cpu.codecs.encode import BlockDestination, PassValues, encode_stored
from lbrx.devices.cpu.codegen import streamed_stores
from lbrx.devices.cpu.inputs import LeafInputs
from lbrx.devices.cpu.packing import packed
from lbrx.engine.bind import BoundPass
from lbrx.engine.block_sizes import BINS, REDUCTION_BLOCK, TABLES, rank_buffer_bytes
from lbrx.engine.destination import CollectState, Destination, HistogramState, SinkTarget
from lbrx.engine.program import BLOCK_REDUCTIONS, FLAT, RANK_OPS, ROWS, Leaf, Program, Sink
from lbrx.memory import budget, scratch
from lbrx.settings import settings
from lbrx.tensors.dtype import DTYPES
from lbrx.tensors.storage import Bytes

# Nanoseconds of work below which a pass is done by one thread, and that are done between two looks at signals.
ALONE, AT_ONCE = 40_000, 100_000_000
_COPY = Program(FLAT, (Leaf("source", "f32", "unit"),), (), (), (Sink("store", "f32", (0,)),))
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def run_pass(bound: BoundPass, targets: list[SinkTarget]) -> list[Any]:
    """Run the pass; for each sink, the partial results of its blocks if it is a reduction, else None."""
    target = targets[0]
    if isinstance(target, BlockDestination) and bound.program == _COPY and bound.leaves[0].codec is None:
        encode_stored(bound.leaves[0], bound.elements, target)
        return [None]
    return _PassOnThreads(bound, targets).run()


def run_in_memory(compiled: CompiledProgram, ints: int, floats: int, elements: int, block: int) -> None:
    """Run a kernel over all elements of a pass whose data is all in memory."""
    if elements * compiled.nanoseconds < ALONE:
        check_status(compiled.kernel(RESULT_ADDRESS, EXCEPTION_ADDRESS, ints, floats, 0, elements))
        return
    longest = max(int(AT_ONCE / compiled.nanoseconds) // block, 1) * block
    for first in range(0, elements, longest):
        stop = min(first + longest, elements)
        nanoseconds = (stop - first) * compiled.nanoseconds
        pieces = block, first, settings.chunk_elements, nanoseconds
        run_together(compiled.kernel, compiled.address, ints, floats, stop, *pieces)


class _PassOnThreads:
    """A pass whose chunks are divided among threads."""

    def __init__(self, bound: BoundPass, targets: list[SinkTarget]) -> None:
        self.bound = bound
        self.targets = targets
        self.compiled: CompiledProgram = compiled(bound.program)
        slots = self.compiled.slots
        self.elements = bound.elements
        self.block = self._block_elements()
        self.lock = Lock()
        leaves = len(bound.leaves)
        outer = bound.outer_shape
        self.ints = np.zeros(slots.variable + len(outer) * (leaves + 1), np.int64)
        self.floats = np.zeros(len(slots.floats), np.float64)
        self.ints[slots["block"]] = self.block
        self.inputs = LeafInputs(bound, self.compiled, self.ints)
        self._set_scalars()
        if bound.program.mode != FLAT:
            self.ints[slots["columns"]] = bound.columns
            self.ints[slots["outer_axes"]] = len(outer)
            for axis, size in enumerate(outer):
                self.ints[slots.variable + axis] = size
        self.partials = [self._partials(number) for number in range(len(targets))]
        self.chunked = [
            (number, target)
            for number, target in enumerate(targets)
            if target is not None and not self._set_whole(number, target)
        ]
        self.has_ranks = any(instruction.op in RANK_OPS for instruction in bound.program.body)

    def _block_elements(self) -> int:
        panel = self._panel_elements()
        if panel:
            return panel
        if self.bound.program.mode == ROWS:
            columns = max(self.bound.columns, 1)
            return max(1, REDUCTION_BLOCK // columns) * columns
        return REDUCTION_BLOCK

    def _panel_elements(self) -> int:
        """The elements of a panel of the largest product that the pass reads, so that none is computed twice.

        0 if there is none, or if partial results need blocks of their own size.
        """
        leaves, sinks = self.bound.leaves, self.bound.program.sinks
        whole = [
            leaf.storage for leaf in leaves if leaf.storage is not None and leaf.storage.nbytes == 4 * self.elements
        ]
        panel = max((getattr(storage, "panel_elements", 0) for storage in whole), default=0)
        is_free = not any(sink.op in BLOCK_REDUCTIONS for sink in sinks) and panel % max(self.bound.columns, 1) == 0
        return panel if is_free and panel >= REDUCTION_BLOCK else 0

    def _set_scalars(self) -> None:
        slots = self.compiled.slots
        for number, value in enumerate(self.bound.scalars):
            slot = slots.floats.get(number)
            if slot is not None:
                self.floats[slot] = value
            else:
                self.ints[slots[f"scalar{number}"]] = value

    def _partials(self, number: int) -> tuple[npt.NDArray[Any], Ints | None] | None:
        sink = self.bound.program.sinks[number]
        if sink.op not in BLOCK_REDUCTIONS:
            return None
        blocks = -(-self.elements // self.block)
        types = self.bound.program.value_types()
        is_float = DTYPES[types[sink.args[0]]].is_float
        values = np.zeros(blocks, np.float64 if is_float else np.int64)
        self.ints[self.compiled.slots[f"sink{number}.partials"]] = values.ctypes.data
        indices = None
        if sink.op == "argmax":
            indices = np.zeros(blocks, np.int64)
            self.ints[self.compiled.slots[f"sink{number}.indices"]] = indices.ctypes.data
        return values, indices

    def _set_whole(self, number: int, target: Any) -> bool:
        """Point a store at the memory of its whole result; False if it has to be handed over chunk by chunk."""
        whole = getattr(target, "whole", None)
        if whole is None or target.dtype.is_packed:
            return False
        slots = self.compiled.slots
        self.ints[slots[f"sink{number}.address"]] = whole.ctypes.data
        if slots.can_stream:
            self.ints[slots["is_streamed"]] = streamed_stores.pays(whole.nbytes)
        return True

    # -- chunks ---------------------------------------------------------------------------------------------------

    @property
    def _packs(self) -> bool:
        return any(getattr(target, "dtype", DTYPES["u8"]).is_packed for _, target in self.chunked)

    def _chunk_elements(self) -> int:
        wanted = settings.chunk_elements
        if settings.threads > 1:
            wanted = min(wanted, max(-(-self.elements // settings.threads), self.block))
        scratch_bytes = self._scratch_bytes()
        if scratch_bytes:
            wanted = min(wanted, budget().limit_bytes // (2 * settings.threads * scratch_bytes))
        return max(wanted // self._unit, 1) * self._unit

    @property
    def _unit(self) -> int:
        return self.block * 4 if self._packs else self.block  # four elements of two bits share a byte

    def _scratch_bytes(self) -> int:
        """Bytes for each element of a chunk."""
        scratch_bytes = sum(getattr(target, "dtype", DTYPES["i64"]).itemsize for _, target in self.chunked)
        return scratch_bytes + sum(leaf.dtype.itemsize for _, leaf in self.inputs.copied)

    def _threads(self, size: int) -> int:
        """Threads that may hold a chunk each: a panel of a product, and what it is computed from, may be large."""
        if not self._panel_elements():
            return settings.threads
        return max(min(settings.threads, budget().limit_bytes // (4 * self._scratch_bytes() * size)), 1)

    @property
    def _is_plain(self) -> bool:
        """Whether all that is read and written lies in memory as it is."""
        return not self.chunked and not self.inputs.watched and not self.has_ranks

    def run(self) -> list[Any]:
        if self.elements and self._is_plain:
            addresses = self.ints.ctypes.data, self.floats.ctypes.data
            run_in_memory(self.compiled, *addresses, self.elements, self.block)
        elif self.elements:
            self._run_chunks()
        return self.partials

    def _run_chunks(self) -> None:
        size = self._chunk_elements()
        if size >= self.elements:
            self._worker()(0, self.elements)
            return
        threads = self._threads(size)
        chunks = split_range(self.elements, size, self._unit, threads)
        ahead = self.inputs.read_ahead(chunks)

        def worker() -> Callable[[int], None]:
            run = self._worker()

            def step(number: int) -> None:
                if ahead is not None:
                    ahead.begin(number)
                run(*chunks[number])

            return step

        with ahead or nullcontext():
            run_chunks(len(chunks), threads, worker)

    def _worker(self) -> Callable[[int, int], None]:
        """A function that runs one chunk, with arguments and scratch memory of its own."""
        coded = self.targets[0]
        if isinstance(coded, BlockDestination) and self._can_encode_tiles(coded):
            return self._tile_worker(coded)
        ints = self.ints.copy() if self.chunked or self.inputs.copied or self.has_ranks else self.ints
        kernel, inputs = self.compiled.kernel, self.inputs
        int_address, float_address = ints.ctypes.data, self.floats.ctypes.data

        def step(lo: int, hi: int) -> None:
            with scratch.borrowing() as borrow:
                inputs.begin(lo, hi, ints, borrow)
                if self.has_ranks:
                    ranks = sum(instruction.op in RANK_OPS for instruction in self.bound.program.body)
                    buffer = borrow(ranks * rank_buffer_bytes(self.bound.columns))
                    ints[self.compiled.slots["rank_buffer"]] = buffer.ctypes.data
                finishers = [
                    self._begin_target(number, target, lo, hi, ints, borrow) for number, target in self.chunked
                ]
                check_status(kernel(RESULT_ADDRESS, EXCEPTION_ADDRESS, int_address, float_address, lo, hi))
                for finish in finishers:
                    finish()
                inputs.done(lo, hi)

        return step

    def _can_encode_tiles(self, target: BlockDestination) -> bool:
        return len(self.targets) == 1 and self.bound.program.mode == FLAT and target.can_encode_tiles

    def _tile_worker(self, target: BlockDestination) -> Callable[[int, int], None]:
        """A function that computes and codes one chunk tile by tile."""
        ints, inputs, kernel = self.ints.copy(), self.inputs, self.compiled.address
        values = PassValues(kernel, ints.ctypes.data, self.floats.ctypes.data, self.compiled.slots["sink0.address"])

        def step(lo: int, hi: int) -> None:
            with scratch.borrowing() as borrow:
                inputs.begin(lo, hi, ints, borrow)
                target.encode_tiles(values, lo, hi)
                inputs.done(lo, hi)

        return step

    def _begin_target(
        self, number: int, target: Any, lo: int, hi: int, ints: Ints, borrow: Callable[[int], Bytes]
    ) -> Callable[[], None]:
        if isinstance(target, HistogramState):
            return self._begin_histogram(number, target, ints, borrow)
        if isinstance(target, CollectState):
            return self._begin_collect(number, target, lo, hi, ints, borrow)
        return self._begin_store(number, target, lo, hi, ints, borrow)

    def _begin_store(
        self, number: int, target: Destination, lo: int, hi: int, ints: Ints, borrow: Callable[[int], Bytes]
    ) -> Callable[[], None]:
        if self.bound.program.sinks[number].op == "row_store":
            lo, hi = lo // self.bound.columns, hi // self.bound.columns
        item_bytes, bits = target.dtype.itemsize, target.dtype.bits
        nbytes = (hi - lo) * item_bytes
        buffer = borrow(nbytes) if bits < 8 else target.borrow_buffer(lo, nbytes)
        ints[self.compiled.slots[f"sink{number}.address"]] = buffer.ctypes.data - lo * item_bytes
        if bits < 8:
            return lambda: target.write(lo, packed(buffer, bits))
        return lambda: target.submit(lo, buffer)

    def _begin_histogram(
        self, number: int, target: HistogramState, ints: Ints, borrow: Callable[[int], Bytes]
    ) -> Callable[[], None]:
        slots = self.compiled.slots
        tables = borrow(8 * BINS * TABLES).view(np.int64)
        tables.fill(0)
        ints[slots[f"sink{number}.tables"]] = tables.ctypes.data
        ints[slots[f"sink{number}.shift"]] = target.shift
        ints[slots[f"sink{number}.first"]] = target.first

        def finish() -> None:
            counted = tables.reshape(TABLES, BINS).sum(axis=0)
            with self.lock:
                target.counts += counted

        return finish

    def _begin_collect(
        self, number: int, target: CollectState, lo: int, hi: int, ints: Ints, borrow: Callable[[int], Bytes]
    ) -> Callable[[], None]:
        slots = self.compiled.slots
        count = hi - lo
        keys, indices = borrow(8 * count).view(np.int64), borrow(8 * count).view(np.int64)
        counts = borrow(16).view(np.int64)
        counts.fill(0)
        names = ("low", "high", "keys", "indices", "state")
        values = (target.low, target.high, keys.ctypes.data, indices.ctypes.data, counts.ctypes.data)
        for name, value in zip(names, values, strict=True):
            ints[slots[f"sink{number}.{name}"]] = value

        def finish() -> None:
            collected, above = (int(count) for count in counts)
            with self.lock:
                target.add(collected, above, keys, indices)

        return finish
