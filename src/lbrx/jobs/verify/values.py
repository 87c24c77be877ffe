"""The bytes of tensors, read once: compared with checksums, and looked at for values that are not finite."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np

from lbrx.base.fast_dataclass import dataclass
from lbrx.base.threads import run_chunks
from lbrx.files.checkpoint.opening import Checkpoint
from lbrx.files.formats.header import FileHeader, TensorEntry
from lbrx.files.formats.source import open_source, read_at
from lbrx.files.output.checksum import Checksum
from lbrx.files.output.nonfinite import count_nonfinite, has_nonfinite
from lbrx.jobs.verify.records import Finding, error, note
from lbrx.registry import CODECS
from lbrx.settings import settings

_PIECE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Scan:
    """What one read of a tensor's bytes tells."""

    checksum: str
    may_have_nonfinite: bool


def check_values(
    model: Checkpoint, header: FileHeader, entry: TensorEntry, expected_checksum: str | None
) -> Iterator[Finding]:
    """What is wrong with the bytes of a tensor."""
    scanned = scan(header, entry)
    if expected_checksum is not None and scanned.checksum != expected_checksum:
        yield error(entry.name, f"has the checksum {scanned.checksum}, expected {expected_checksum}: its bytes changed")
    is_coded = entry.dtype is None and entry.type_name in CODECS
    if entry.dtype is None and not is_coded:
        if entry.type_name not in ("u16", "u32", "u64"):
            yield note(entry.name, f"is {entry.type_name}, whose values cannot be looked at")
        return
    is_swapped = header.byte_order == "big"
    if not (
        is_coded or scanned.may_have_nonfinite or (is_swapped and entry.dtype is not None and entry.dtype.is_float)
    ):
        return
    tensor = model.stored(entry.name)
    for nans, infinities in count_nonfinite({entry.name: tensor}).values():
        cause = f", from broken scales of {entry.type_name} blocks" if is_coded else ""
        yield error(entry.name, f"has {nans:,} NaN and {infinities:,} infinite values of {tensor.size:,}{cause}")


def scan(header: FileHeader, entry: TensorEntry) -> Scan:
    """Read the bytes of a tensor in pieces, on all threads."""
    checksum = Checksum(entry.nbytes)
    suspicious = threading.Event()

    with open_source(header.path) as file:

        def worker() -> Callable[[int], None]:
            def step(number: int) -> None:
                first = number * _PIECE_BYTES
                raw = read_at(file, header.path, entry.offset + first, min(_PIECE_BYTES, entry.nbytes - first))
                piece = np.frombuffer(raw, np.uint8)
                checksum.add(first, piece)
                if entry.dtype is not None and not suspicious.is_set() and has_nonfinite(piece, entry.dtype):
                    suspicious.set()

            return step

        run_chunks(-(-entry.nbytes // _PIECE_BYTES), settings.threads, worker)
    return Scan(checksum.hexdigest(), suspicious.is_set())
