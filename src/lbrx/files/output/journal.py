"""The journal of a run: the finished tensors, so that the same command can resume a run that was stopped.

Lines of JSON beside the output: first the identity of the plan, then a line for each finished tensor with its checksum,
at last a line that says that all files are complete. A line is written after the bytes that it speaks of. What a power
failure can make of that order does not matter: whoever resumes checks the bytes against the checksums.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from types import TracebackType
from typing import Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.base.file_lock import open_locked
from lbrx.base.system import pwrite_all
from lbrx.errors import FileError, UsageError
from lbrx.files.output.plan import VERSION_KEY, Identity

JOURNAL_VERSION = 1


@dataclass(frozen=True, slots=True)
class Entry:
    """A finished tensor: its checksum, and the values that are not finite, by where they are."""

    tensor: str
    checksum: str
    nonfinite: dict[str, tuple[int, int]] = field(default_factory=dict)  # tensor or result -> (NaN, infinities)


class Journal:
    """An open journal, locked against other processes; a context manager. ``discard`` forgets what it holds.

    If another run holds it, that is an error, or ``wait`` waits for its end.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "journal"
    >>> with Journal(path) as journal:
    ...     journal.begin({"seed": 1})
    ...     journal.add([Entry("w", "00ff")])
    >>> with Journal(path) as journal:
    ...     journal.identity, journal.entries["w"].checksum, journal.is_complete
    ({'seed': 1}, '00ff', False)
    """

    def __init__(self, path: Path, discard: bool = False, wait: bool = False) -> None:
        self.path = path
        self.identity: Identity | None = None
        self.entries: dict[str, Entry] = {}
        self.is_complete = False
        self._descriptor = _open_locked(path, wait)
        self._end = 0
        try:
            if discard:
                os.ftruncate(self._descriptor, 0)
            self._read()
        except BaseException:
            os.close(self._descriptor)
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, error_class: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def begin(self, identity: Identity) -> None:
        """Start anew for a plan."""
        os.ftruncate(self._descriptor, 0)
        self.entries, self.is_complete, self._end = {}, False, 0
        self.identity = identity
        self._append({"version": JOURNAL_VERSION, "plan": identity})

    def add(self, entries: Sequence[Entry]) -> None:
        """Tensors are finished."""
        lines = []
        for entry in entries:
            self.entries[entry.tensor] = entry
            line: dict[str, Any] = {"tensor": entry.tensor, "checksum": entry.checksum}
            lines.append({**line, "nonfinite": entry.nonfinite} if entry.nonfinite else line)
        self._append(*lines)

    def complete(self) -> None:
        """Everything is written; only the output's name is missing."""
        self.is_complete = True
        self._append({"complete": True})

    def remove(self) -> None:
        """The run is over."""
        self.path.unlink(missing_ok=True)

    def _append(self, *lines: dict[str, Any]) -> None:
        data = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
        pwrite_all(self._descriptor, data, self._end, self.path)
        self._end += len(data)

    def _read(self) -> None:
        """Read all whole lines; what follows them was cut off in the middle of a write."""
        size = os.fstat(self._descriptor).st_size
        content = os.pread(self._descriptor, size, 0)
        end = content.rfind(b"\n") + 1
        try:
            lines = [json.loads(line) for line in content[:end].splitlines()]
            version = lines[0]["version"] if lines else JOURNAL_VERSION
            if version == JOURNAL_VERSION:
                self._take(lines)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise FileError(f"{self.path}: is no journal of a run; remove it, or give --restart") from error
        if version != JOURNAL_VERSION:
            raise UsageError(
                f"{self.path}: was written by another version of lbrx (journal format {version}; expected "
                f"{JOURNAL_VERSION}); finish the run with that version, or give --restart to discard its work"
            )
        self._end = end
        os.ftruncate(self._descriptor, end)

    def _take(self, lines: list[dict[str, Any]]) -> None:
        if not lines:
            return
        self.identity = dict(lines[0]["plan"].items())
        for line in lines[1:]:
            if "complete" in line:
                self.is_complete = True
            else:
                nonfinite = {where: (counts[0], counts[1]) for where, counts in line.get("nonfinite", {}).items()}
                self.entries[line["tensor"]] = Entry(line["tensor"], line["checksum"], nonfinite)


@contextmanager
def journal_lock(path: Path) -> Iterator[None]:
    """Keep other runs away from an output, whatever its journal holds."""
    descriptor = _open_locked(path)
    try:
        yield
    finally:
        os.close(descriptor)


def _open_locked(path: Path, wait: bool = False) -> int:
    descriptor = open_locked(path, wait_seconds=math.inf if wait else 0.0)
    if descriptor is None:
        raise UsageError(f"{path}: another run into the same output is going on")
    return descriptor


def difference(before: Identity, now: Identity) -> str | None:
    """What two plans differ in, in words; None if they are the same.

    >>> difference({"seed": 1}, {"seed": 2})
    'the seed was 1 and is 2'
    """
    for key in sorted({**now, **before}, key=lambda key: key != VERSION_KEY):
        was, is_now = before.get(key), now.get(key)
        if was == is_now:
            continue
        if isinstance(was, dict) and isinstance(is_now, dict):
            changed = next(name for name in (*is_now, *was) if was.get(name) != is_now.get(name))
            return f"the {key} {changed!r} {_change(was, is_now, changed)}"
        if key == VERSION_KEY or (isinstance(was, int) and isinstance(is_now, int)):
            return f"the {key} was {was} and is {is_now}"
        return f"the {key} is another"
    return None


def _change(was: dict[str, Any], is_now: dict[str, Any], name: str) -> str:
    if name not in was:
        return "is new"
    return "was changed" if name in is_now else "is missing"
