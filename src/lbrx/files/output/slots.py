"""Compute the tensors of a plan into their slots of a file, with checksums and a check for NaN and infinities."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np

from lbrx.base import system
from lbrx.base.threads import run_chunks
from lbrx.engine.destination import MemoryDestination
from lbrx.engine.evaluate import evaluate_tensors
from lbrx.files.formats.header import FileLayout, Slot
from lbrx.files.output.checksum import Checksum, checksum_of
from lbrx.files.output.file_writer import FileDestination, FileWriter
from lbrx.files.output.journal import Entry
from lbrx.files.output.nonfinite import RESULT, count_nonfinite, has_nonfinite
from lbrx.files.output.plan import OutputPlan
from lbrx.settings import settings
from lbrx.tensors.dtype import DTYPES, DType
from lbrx.tensors.storage import Bytes

VERIFY_BYTES = 4 << 20
BATCH_BYTES = 256 << 10  # of neighbouring tensors that are written at once


class _Watched:
    """Notes whether values that become blocks are finite."""

    __slots__ = ()
    has_nonfinite: bool

    def check_finite(self, values: Bytes, dtype: DType) -> None:
        if has_nonfinite(values, dtype):
            self.note_nonfinite()

    def note_nonfinite(self) -> None:
        self.has_nonfinite = True  # type: ignore[misc]


class CheckedDestination(_Watched, FileDestination):
    """A slot of a file whose bytes are summed up and looked at on their way, while the processor's cache holds them."""

    __slots__ = ("_checksum", "has_nonfinite")

    def __init__(self, file: FileWriter, slot: Slot, dtype: DType) -> None:
        super().__init__(file, slot.offset, dtype)
        self._checksum = Checksum(slot.nbytes)
        self.has_nonfinite = False

    @property
    def checksum(self) -> str:
        return self._checksum.hexdigest()

    def write(self, lo: int, data: Bytes) -> None:
        self._check(lo, data)
        super().write(lo, data)

    def submit(self, lo: int, scratch: Bytes) -> None:
        self._check(lo, scratch)
        super().submit(lo, scratch)

    def _check(self, lo: int, data: Bytes) -> None:
        self._checksum.add(self.dtype.nbytes(lo), data)
        self.check_finite(data, self.dtype)


class BufferDestination(_Watched, MemoryDestination):
    """A slot within a buffer that holds the bytes of several."""

    __slots__ = ("_bytes", "dtype", "has_nonfinite")

    def __init__(self, data: Bytes, dtype: DType) -> None:
        self._bytes = data
        self.dtype = dtype
        self.has_nonfinite = False

    @property
    def whole(self) -> Bytes:
        return self._bytes

    @property
    def checksum(self) -> str:
        return checksum_of(self._bytes)


def units_of(plan: OutputPlan, slots: Iterable[Slot]) -> list[list[Slot]]:
    """Slots in their order, with neighbours together that are parts of one unit."""
    return [list(unit) for _, unit in groupby(slots, lambda slot: plan.unit(slot.name))]


def batches_of(units: Sequence[list[Slot]], layout: FileLayout) -> list[list[list[Slot]]]:
    """Units in their order, as many together as fit into a buffer; no other tensors are between those of a batch."""
    numbers = {slot.name: number for number, slot in enumerate(layout.slots)}
    batches: list[list[list[Slot]]] = []
    first = last = -1  # of the latest batch, as numbers of slots
    for unit in units:
        start, stop = numbers[unit[0].name], numbers[unit[-1].name]
        fits = unit[-1].offset + unit[-1].nbytes - layout.slots[first].offset <= BATCH_BYTES
        if batches and fits and start == last + 1 and stop - start == len(unit) - 1:
            batches[-1].append(unit)
        else:
            batches.append([unit])
            first = start
        last = stop if stop - start == len(unit) - 1 else len(layout.slots)
    return batches


def write_batch(plan: OutputPlan, units: list[list[Slot]], file: FileWriter) -> list[Entry]:
    """Compute the tensors of units that lie close together, write them at once, and say what they are.

    Other threads that write may have been left some of their bytes: they are written when ``left_and_written`` of the
    file is what its ``left`` is now.
    """
    if len(units) == 1:
        return _write_unit(plan, units[0], file)
    first, end = units[0][0].offset, units[-1][-1].offset + units[-1][-1].nbytes
    buffer = file.borrow_buffer(first, end - first)
    filled = 0
    destinations: list[BufferDestination] = []
    for unit in units:
        for slot in unit:
            start = slot.offset - first
            buffer[filled:start] = 0  # between tensors that are aligned
            filled = start + slot.nbytes
            destinations.append(BufferDestination(buffer[start:filled], _dtype(slot)))
        _evaluate(plan, unit, destinations[-len(unit) :])
    _look_for_nonfinite(destinations, buffer)
    slots = (slot for unit in units for slot in unit)
    entries = [_entry(plan, slot, destination) for slot, destination in zip(slots, destinations, strict=True)]
    file.submit(first, buffer)
    return entries


def _look_for_nonfinite(destinations: list[BufferDestination], buffer: Bytes) -> None:
    """Look at all bytes together, if they are of one dtype, before each tensor is looked at."""
    dtypes = {destination.dtype for destination in destinations}
    if len(dtypes) == 1 and not has_nonfinite(buffer, destinations[0].dtype):
        return
    for destination in destinations:
        destination.check_finite(destination.whole, destination.dtype)


def _write_unit(plan: OutputPlan, unit: list[Slot], file: FileWriter) -> list[Entry]:
    destinations = [CheckedDestination(file, slot, _dtype(slot)) for slot in unit]
    _evaluate(plan, unit, destinations)
    return [_entry(plan, slot, destination) for slot, destination in zip(unit, destinations, strict=True)]


def _dtype(slot: Slot) -> DType:
    return DTYPES.get(slot.type_name, DTYPES["u8"])


def _evaluate(
    plan: OutputPlan, unit: list[Slot], destinations: Sequence[CheckedDestination | BufferDestination]
) -> None:
    evaluate_tensors(list(zip([plan.expression(slot.name) for slot in unit], destinations, strict=True)))


def _entry(plan: OutputPlan, slot: Slot, destination: CheckedDestination | BufferDestination) -> Entry:
    counts: dict[str, tuple[int, int]] = {}
    if destination.has_nonfinite:
        counts = count_nonfinite({**plan.inputs(slot.name), RESULT: plan.tensor(slot.name)})
    return Entry(slot.name, destination.checksum, counts)


def file_checksum(descriptor: int, offset: int, nbytes: int, path: Path) -> str:
    """The checksum of a run of bytes of a file, read on all threads."""
    checksum = Checksum(nbytes)

    def worker() -> Callable[[int], None]:
        buffer = np.empty(min(VERIFY_BYTES, nbytes), np.uint8)

        def step(number: int) -> None:
            start = number * VERIFY_BYTES
            piece = buffer[: min(VERIFY_BYTES, nbytes - start)]
            system.pread_into(descriptor, piece, offset + start, path)
            checksum.add(start, piece)

        return step

    run_chunks(-(-nbytes // VERIFY_BYTES), settings.threads, worker)
    return checksum.hexdigest()
