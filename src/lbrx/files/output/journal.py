"""The journal of a run: the finished tensors, so that the same command can resume a run that was stopped.

Lines of JSON beside the output: first the identity of the plan, then a line for each finished tensor with its checksum,
at last a line that says that all files are complete. A line is written after the bytes that it speaks of. What a power
failure can do to that order does not matter: a resumed run checks the bytes against the checksums.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import field
from pathlib import Path
from types import TracebackType
from typing import Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.base.file_lock import open_locked
from lbrx.base.system import flush_to_disk, pread_into, pwrite_all, remove_file, truncate
from lbrx.errors import FileError, LbrxError, UsageError
from lbrx.files.output.plan import VERSION_KEY, Identity

JOURNAL_VERSION = 1
_MALFORMED = (ValueError, LookupError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True, slots=True)
class Entry:
    """A finished tensor: its checksum, and the values that are not finite, by where they are."""

    tensor: str
    checksum: str
    nonfinite: dict[str, tuple[int, int]] = field(default_factory=dict)  # tensor or result -> (NaN, infinities)


class Journal:
    """An open journal, locked against other processes; a context manager. ``discard`` forgets the finished tensors.

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
        self.is_complete = False  # also known if the rest is discarded
        self.inodes: dict[str, int] = {}  # of a complete output, by name
        self._descriptor = _open_locked(path, wait)
        self._end = 0
        try:
            self._read(discard)
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
        truncate(self._descriptor, 0, self.path)
        self.entries, self.is_complete, self.inodes, self._end = {}, False, {}, 0
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

    def complete(self, inodes: dict[str, int], sync: bool) -> None:
        """Everything is written; only the output's name is missing. ``sync`` makes the journal survive a crash."""
        self.is_complete, self.inodes = True, inodes
        self._append({"complete": True, "inodes": inodes})
        if sync:
            flush_to_disk(self._descriptor, self.path)

    def remove(self) -> None:
        """The run is over."""
        remove_file(self.path)

    def _append(self, *lines: dict[str, Any]) -> None:
        data = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
        pwrite_all(self._descriptor, data, self._end, self.path)
        self._end += len(data)

    def _read(self, discard: bool) -> None:
        """Read all whole lines, up to one that a failed write or a power failure left incomplete."""
        content = bytearray(os.fstat(self._descriptor).st_size)
        pread_into(self._descriptor, content, 0, self.path)
        lines = content.partition(b"\0")[0].splitlines(keepends=True)  # zeros were never written
        if not lines or not lines[0].endswith(b"\n"):
            truncate(self._descriptor, 0, self.path)
            return
        try:
            self._take_first(lines[0])
        except LbrxError:
            if not discard:
                raise
        self._end = len(lines[0])
        with suppress(*_MALFORMED):
            for line in lines[1:]:
                self._take(line)
                self._end += len(line)
        if discard:
            self.identity, self.entries, self._end = None, {}, 0
        truncate(self._descriptor, self._end, self.path)

    def _take_first(self, line: bytearray) -> None:
        try:
            first = json.loads(line)
            version = first["version"]
            if version == JOURNAL_VERSION:
                self.identity = dict(first["plan"].items())
        except _MALFORMED as error:
            raise FileError(f"{self.path}: is not a journal of a run; remove it or use --restart") from error
        if version != JOURNAL_VERSION:
            raise UsageError(
                f"{self.path}: was written by another version of lbrx (journal format {version}; expected "
                f"{JOURNAL_VERSION}); finish the run with that version, or give --restart to discard its work"
            )

    def _take(self, text: bytearray) -> None:
        if not text.endswith(b"\n"):
            raise ValueError("the line is incomplete")
        line = json.loads(text)
        if "complete" in line:
            self.inodes = {str(name): int(inode) for name, inode in line["inodes"].items()}
            self.is_complete = True
        else:
            nonfinite = {where: (counts[0], counts[1]) for where, counts in line.get("nonfinite", {}).items()}
            self.entries[line["tensor"]] = Entry(line["tensor"], line["checksum"], nonfinite)


@contextmanager
def journal_lock(path: Path, wait: bool = False) -> Iterator[None]:
    """Keep other runs away from an output, whatever its journal holds."""
    descriptor = _open_locked(path, wait)
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
