"""Tensors of a plan computed into their slots of a file, with checksums and an eye on what is not finite."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from pathlib import Path

import numpy as np

from lbrx.base import system
from lbrx.base.threads import run_chunks
from lbrx.engine.schedule import evaluate_tensors
from lbrx.files.formats.header import Slot
from lbrx.files.output.checksum import Checksum
from lbrx.files.output.file_writer import FileDestination, FileWriter
from lbrx.files.output.journal import Entry
from lbrx.files.output.nonfinite import RESULT, count_nonfinite, has_nonfinite
from lbrx.files.output.plan import OutputPlan
from lbrx.settings import settings
from lbrx.tensors.dtype import DTYPES, DType
from lbrx.tensors.storage import Bytes

VERIFY_BYTES = 4 << 20


class CheckedDestination(FileDestination):
    """A slot of a file whose bytes are summed up and looked at on their way, while the processor's cache holds them."""

    __slots__ = ("checksum", "has_nonfinite")

    def __init__(self, file: FileWriter, slot: Slot, dtype: DType) -> None:
        super().__init__(file, slot.offset, dtype)
        self.checksum = Checksum(slot.nbytes)
        self.has_nonfinite = False

    def write(self, lo: int, data: Bytes) -> None:
        self._check(lo, data)
        super().write(lo, data)

    def submit(self, lo: int, scratch: Bytes) -> None:
        self._check(lo, scratch)
        super().submit(lo, scratch)

    def _check(self, lo: int, data: Bytes) -> None:
        self.checksum.add(self.dtype.nbytes(lo), data)
        self.check_finite(data, self.dtype)

    def check_finite(self, values: Bytes, dtype: DType) -> None:
        if has_nonfinite(values, dtype):
            self.note_nonfinite()

    def note_nonfinite(self) -> None:
        self.has_nonfinite = True


def units_of(plan: OutputPlan, slots: Iterable[Slot]) -> list[list[Slot]]:
    """Slots in their order, with neighbours together that are parts of one unit."""
    return [list(unit) for _, unit in groupby(slots, lambda slot: plan.unit(slot.name))]


def write_slots(plan: OutputPlan, slots: list[Slot], file: FileWriter) -> list[Entry]:
    """Compute the tensors of a unit into their slots of an open file, and say what they are.

    Other threads that write may have been left some of their bytes: they are written when ``left_and_written`` of the
    file is what its ``left`` is now.
    """
    bound = [plan.bound(slot.name) for slot in slots]
    destinations = [CheckedDestination(file, slot, DTYPES.get(slot.type_name, DTYPES["u8"])) for slot in slots]
    evaluate_tensors(list(zip(bound, destinations, strict=True)))
    entries = []
    for slot, destination in zip(slots, destinations, strict=True):
        counts: dict[str, tuple[int, int]] = {}
        if destination.has_nonfinite:
            counts = count_nonfinite({**plan.inputs(slot.name), RESULT: plan.tensor(slot.name)})
        entries.append(Entry(slot.name, destination.checksum.hexdigest(), counts))
    return entries


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
