"""The journal of a search: one line of JSON for every measurement, in the order in which they were made.

It contains nothing that differs between two runs of the same search, so an interrupted search that is resumed writes
the same bytes as one that was not.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from lbrx.base.atomic_write import remove_partial_files
from lbrx.base.fast_dataclass import dataclass
from lbrx.base.file_lock import open_locked
from lbrx.errors import FormatError, UsageError

JOURNAL_NAME = "search.jsonl"
_FORMAT = "lbrx search 1"


@dataclass(frozen=True, slots=True)
class Measurement:
    """The figures of a candidate on a rung."""

    candidate: int
    rung: int
    values: tuple[float, ...]
    figures: Mapping[str, float]


class Journal:
    """Appends measurements to a file, each on the disk before the next one is made.

    ``restart`` forgets those of an earlier search.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], *, restart: bool = False) -> None:
        self.path = path
        self.known: dict[tuple[int, int], Measurement] = {}
        header = json.dumps({"format": _FORMAT, "settings": settings}, sort_keys=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = open_locked(path)
        if lock is None:
            raise UsageError(f"{path}: another search is writing into this directory; wait for it, or use another one")
        try:
            remove_partial_files(path.parent)
            if restart:
                os.truncate(path, 0)
            is_new = not self._read(header)
            self._file: BinaryIO = path.open("ab")
        except BaseException:
            os.close(lock)
            raise
        self._lock = lock
        if is_new:
            self._write(header)

    def _read(self, header: str) -> bool:
        """Read what is known; return False if not even the first line is complete."""
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]  # a line without an end was being written
        lines = whole.splitlines()
        if lines and lines[0] != header.encode():
            raise UsageError(
                f"{self.path}: is the journal of a search with other settings or models; "
                "use another output, or --restart to begin again"
            )
        for number, line in enumerate(lines[1:], start=2):
            one = self._measurement(number, line)
            self.known[one.candidate, one.rung] = one
        if len(whole) != len(content):
            os.truncate(self.path, len(whole))
        return bool(lines)

    def _measurement(self, number: int, line: bytes) -> Measurement:
        try:
            row = json.loads(line)
            figures = {
                str(name): float("inf") if value is None else float(value) for name, value in row["figures"].items()
            }
            return Measurement(int(row["candidate"]), int(row["rung"]), tuple(map(float, row["values"])), figures)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise FormatError(f"{self.path}: line {number} is damaged; use --restart to begin again") from error

    def add(self, candidate: int, rung: int, values: Sequence[float], figures: Mapping[str, float]) -> Measurement:
        """Append a measurement and flush it to the disk."""
        one = Measurement(candidate, rung, tuple(values), dict(figures))
        finite = {name: value if value < float("inf") else None for name, value in figures.items()}
        self._write(json.dumps({"candidate": candidate, "rung": rung, "values": list(values), "figures": finite}))
        self.known[candidate, rung] = one
        return one

    def _write(self, line: str) -> None:
        self._file.write(line.encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()
        os.close(self._lock)
