"""Running a plan: tensors streamed into their slots, journalled, and the finished directory renamed.

Big tensors are computed on all threads together; small ones are handed out, one to a thread. What is written does not
depend on either, nor on the memory that is allowed.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from lbrx.base import system
from lbrx.base.fast_dataclass import dataclass
from lbrx.base.threads import run_chunks
from lbrx.engine.device import computing_on
from lbrx.errors import FileError, UsageError
from lbrx.files.formats.header import FileLayout, Slot
from lbrx.files.output.checksum import ALGORITHM
from lbrx.files.output.file_writer import FileWriter, writing
from lbrx.files.output.journal import Entry, Journal, difference, journal_lock
from lbrx.files.output.nonfinite import NonFiniteError, describe
from lbrx.files.output.options import Progress, RunKeywords, RunOptions
from lbrx.files.output.plan import Identity, OutputPlan, output_bytes, written_path
from lbrx.files.output.slots import batches_of, file_checksum, units_of, write_batch
from lbrx.files.output.staging import Staging, existing_parent
from lbrx.files.remote.paths import as_path, is_remote
from lbrx.memory.limits import limited
from lbrx.registry import RUNNERS, load
from lbrx.settings import settings

CHECKSUMS_NAME = "lbrx.checksums.json"
SMALL_BYTES = 256 << 10  # tensors below are computed whole by one thread
SIDE_BY_SIDE_BYTES = 128 << 20  # and so are larger ones, if as many as there are threads are not more than this
SIDE_BY_SIDE_UNITS = 4  # for each thread: with fewer, threads would wait for the last
_DEFAULTS = RunOptions()
_Plan = TypeVar("_Plan", bound=OutputPlan)


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run did.

    ``out`` is the output, of a split GGUF model its first shard. ``nonfinite`` counts the NaN and infinite values, by
    tensor and by where they are.
    """

    out: Path
    tensors: int
    written_bytes: int
    resumed_tensors: int
    nonfinite: dict[str, dict[str, tuple[int, int]]]
    seconds: float


def plan_and_execute(plan_call: partial[_Plan], keywords: RunKeywords, **only_here: Any) -> RunResult:
    """Make a plan and run it, both within the limits. Workers of a cluster repeat the call without ``only_here``."""
    options = RunOptions.of(keywords)
    with limited(options.threads, options.memory), computing_on(options.device, options.cluster):
        plan = plan_call(**only_here)
        if options.planned is not None:
            options.planned(plan)
        if options.cluster is None:
            return execute(plan, options)
        return execute(plan, options, load(RUNNERS["output"])(options.cluster, plan_call))


def execute(
    plan: OutputPlan,
    options: RunOptions = _DEFAULTS,
    runner: Callable[..., Run] | None = None,
    *,
    takes_over: bool = False,
) -> RunResult:
    """Run a plan. After a failure or a kill, run the same plan again to resume.

    ``runner`` computes the tensors: the threads of this machine by default, or `lbrx.cluster.run.cluster_runner`.
    ``takes_over`` waits for another run into the same output and discards the unfinished work of another plan, which
    are errors otherwise; its own work is discarded after an error.
    """
    started = time.monotonic()
    runner = runner or _default_runner(plan)
    staging = staging_of(plan)
    restore_replaced(staging, wait=takes_over)
    if not staging.journal.exists():
        _check_target(plan, staging, options, takes_over)
        staging.make_parent()
    contents = {file.name: file.read() for file in plan.side_files}
    identity = plan.identity(contents)
    with Journal(staging.journal, discard=options.restart, wait=takes_over) as journal:
        try:
            was_published = _was_published(staging, journal)
            if was_published and not takes_over and _is_same(journal, identity):
                resumed_tensors = tensor_count(plan)
            else:
                _check_target(plan, staging, options, takes_over)
                _begin(staging, journal, identity, takes_over, was_published)
                run = runner(plan, staging, journal, options)
                run.run()
                _check_inputs(identity, plan.identity(contents))
                _finish(plan, staging, journal, contents, options.sync)
                resumed_tensors = run.resumed_tensors
            journal.remove()
        except BaseException:
            if takes_over:
                staging.discard()
                journal.remove()
            raise
    nonfinite = {name: entry.nonfinite for name, entry in journal.entries.items() if entry.nonfinite}
    seconds = time.monotonic() - started
    return RunResult(
        as_path(written_path(plan)), tensor_count(plan), output_bytes(plan), resumed_tensors, nonfinite, seconds
    )


def check_output(plan: OutputPlan, overwrite: bool) -> int | None:
    """The bytes that are free on the disk of an output, None for a remote one; raise if it cannot be written."""
    if is_remote(plan.out):
        return None
    staging = staging_of(plan)
    _check_target(plan, staging, RunOptions(overwrite=overwrite), takes_over=False)
    free_bytes = shutil.disk_usage(existing_parent(staging.target)).free
    needed_bytes = sum(layout.file_bytes for layout in plan.layouts)
    if needed_bytes > free_bytes:
        needed, free = system.format_bytes(needed_bytes), system.format_bytes(free_bytes)
        raise FileError(f"{plan.out}: disk full: needs {needed}, has {free} free")
    return free_bytes


def _check_target(plan: OutputPlan, staging: Staging, options: RunOptions, takes_over: bool) -> None:
    staging.check_target(options.overwrite)
    if options.overwrite and not takes_over:
        staging.check_replaced([header.path for header in plan.sources])


def staging_of(plan: OutputPlan) -> Staging:
    names = None if plan.is_directory else [layout.name for layout in plan.layouts]
    if not is_remote(plan.out):
        return Staging(plan.out, names)
    from lbrx.files.output.upload import RemoteStaging

    return RemoteStaging(plan, names)


def _default_runner(plan: OutputPlan) -> type[Run]:
    if not is_remote(plan.out):
        return Run
    from lbrx.files.output.upload import UploadingRun

    return UploadingRun


def tensor_count(plan: OutputPlan) -> int:
    return sum(len(layout.slots) for layout in plan.layouts)


def restore_replaced(staging: Staging, wait: bool = False) -> None:
    """Put an old output back that a killed run had moved aside; if that run is still active, that is an error."""
    if staging.has_lost_target:
        with journal_lock(staging.journal, wait):
            if staging.has_lost_target:
                staging.undo_publishing()


def _was_published(staging: Staging, journal: Journal) -> bool:
    """Whether an earlier run published its output, which is cleaned up then; renames of a part are undone."""
    if not journal.is_complete:
        return False
    if not staging.is_published(journal.inodes) or not _has_checksums(staging.target, journal):
        staging.undo_publishing(journal.inodes)
        return False
    staging.clean_up()
    return True


def _has_checksums(target: Path, journal: Journal) -> bool:
    """Whether a directory has the checksums of a journal: inodes of some network file systems are not unique."""
    if not target.is_dir():
        return True
    try:
        checksums = json.loads((target / CHECKSUMS_NAME).read_bytes())["tensors"]
    except (OSError, ValueError, LookupError, TypeError):
        return False
    return bool(checksums == {name: entry.checksum for name, entry in journal.entries.items()})


def _is_same(journal: Journal, identity: Identity) -> bool:
    return journal.identity is not None and difference(journal.identity, identity) is None


def _begin(staging: Staging, journal: Journal, identity: Identity, takes_over: bool, was_published: bool) -> None:
    """Resume the journal's work if it is of the same plan, or start anew if there is none to lose."""
    changed = None if journal.identity is None else difference(journal.identity, identity)
    if was_published or journal.identity is None or not journal.entries or (takes_over and changed is not None):
        staging.prepare(discard=True)
        journal.begin(identity)
        return
    if changed is not None:
        raise UsageError(
            f"{staging.partial}: holds the unfinished work of another run: {changed}; "
            f"run that one again to finish it, or give --restart to discard it"
        )
    staging.prepare(discard=False)


def _check_inputs(before: Identity, now: Identity) -> None:
    changed = difference(before, now)
    if changed is not None:
        raise FileError(f"{changed} while it was read; run it again with --restart")


def _finish(plan: OutputPlan, staging: Staging, journal: Journal, contents: dict[str, bytes], sync: bool) -> None:
    """Write the small files, see that nothing is missing, and give the output its name."""
    names = [slot.name for layout in plan.layouts for slot in layout.slots]
    missing = [name for name in names if name not in journal.entries]
    if missing:
        raise FileError(f"{staging.partial}: {len(missing)} tensors were not written, such as {missing[0]!r}")
    if plan.is_directory:
        checksums = {name: journal.entries[name].checksum for name in names}
        contents = contents | {CHECKSUMS_NAME: checksums_json(checksums)}
    for name, content in contents.items():
        staging.write_file(name, content, sync)
    staging.keep_only([*contents, *(layout.name for layout in plan.layouts)])
    if sync:
        system.sync_directory(staging.partial)
    journal.complete(staging.inodes(), sync and staging.is_split)
    staging.publish(sync)


def checksums_json(checksums: dict[str, str]) -> bytes:
    """The content of the checksums' file.

    >>> json.loads(checksums_json({"w": "00ff"}))["tensors"]
    {'w': '00ff'}
    """
    return (json.dumps({"algorithm": ALGORITHM, "tensors": checksums}, indent=1) + "\n").encode()


class _Computed(NamedTuple):
    """Tensors that are computed, and written when so many buffers of their file that were left to a writer are."""

    left: int
    slots: list[Slot]
    entries: list[Entry]
    following: Slot | None


class Run:
    """The part of a run that computes: every tensor that the journal does not have yet, on this machine's threads."""

    def __init__(
        self,
        plan: OutputPlan,
        staging: Staging,
        journal: Journal,
        options: RunOptions,
    ) -> None:
        self.plan = plan
        self.staging = staging
        self.journal = journal
        self.options = options
        self.resumed_tensors = 0
        self._total_tensors, self._total_bytes = tensor_count(plan), output_bytes(plan)
        self._done_bytes = self._resumed_bytes = 0
        self._lock = threading.Lock()
        self._unnoted: deque[_Computed] = deque()

    def run(self) -> None:
        # Every file is made in its full size first, so that a full disk shows before the work begins. Few are open at
        # a time: a model can have more shards than a process may have files.
        for layout in self.plan.layouts:
            with self.opened(layout) as descriptor:
                self.check_finished(layout, descriptor)
        with ThreadPoolExecutor(1, "lbrx-flush") as flusher:
            flushes = []
            for layout in self.plan.layouts:
                with self.opened(layout) as descriptor:
                    self.write_layout(layout, descriptor)
                if self.options.sync:
                    flushes.append(flusher.submit(self.flush, layout))
            for flush in flushes:
                flush.result()

    @contextmanager
    def opened(self, layout: FileLayout) -> Iterator[int]:
        descriptor = self.staging.open_file(layout.name, layout.file_bytes, layout.header)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def flush(self, layout: FileLayout) -> None:
        with self.opened(layout) as descriptor:
            system.flush_to_disk(descriptor, self.staging.partial / layout.name)

    # -- what an earlier run did ----------------------------------------------------------------------------------

    def check_finished(self, layout: FileLayout, descriptor: int) -> None:
        """Forget journalled tensors whose bytes are not what their checksums say, and count the others as done."""
        for slot in layout.slots:
            entry = self.journal.entries.get(slot.name)
            if entry is None:
                continue
            if (
                file_checksum(descriptor, slot.offset, slot.nbytes, self.staging.partial / layout.name)
                != entry.checksum
            ):
                del self.journal.entries[slot.name]
                continue
            self.count_resumed(slot, entry)

    def count_resumed(self, slot: Slot, entry: Entry) -> None:
        """A tensor of an earlier run is whole."""
        self._check_strict(slot.name, entry.nonfinite)
        self.resumed_tensors += 1
        self._resumed_bytes += slot.nbytes
        self._done_bytes += slot.nbytes

    def _check_strict(self, name: str, counts: dict[str, tuple[int, int]]) -> None:
        if self.options.strict and counts:
            raise NonFiniteError(f"tensor {name!r}: {describe(counts)}; without --strict this is only reported")

    # -- what this run does ---------------------------------------------------------------------------------------

    def write_layout(self, layout: FileLayout, descriptor: int) -> None:
        path = self.staging.partial / layout.name
        with writing(descriptor, path, layout.file_bytes, to_disk=self.options.sync) as file:
            self._write_slots(layout, file)

    def _write_slots(self, layout: FileLayout, file: FileWriter) -> None:
        waiting = [slot for slot in layout.slots if slot.name not in self.journal.entries]
        units = units_of(self.plan, waiting)
        most_bytes = _most_bytes_of_one_thread(units)
        batches = batches_of([unit for unit in units if _unit_bytes(unit) < most_bytes], layout)

        def worker() -> Callable[[int], None]:
            return lambda number: self._write(batches[number], file)

        run_chunks(len(batches), settings.threads, worker)
        large = [unit for unit in units if _unit_bytes(unit) >= most_bytes]
        for unit, following in zip_longest(large, large[1:]):
            self._write([unit], file, None if following is None else following[0])
        file.finish()
        self._note_written(file)

    def _write(self, batch: list[list[Slot]], file: FileWriter, following: Slot | None = None) -> None:
        entries = write_batch(self.plan, batch, file)
        slots = [slot for unit in batch for slot in unit]
        with self._lock:
            self._unnoted.append(_Computed(file.left, slots, entries, following))
        self._note_written(file)

    def _note_written(self, file: FileWriter) -> None:
        """Finish tensors that are computed and completely written."""
        while True:
            with self._lock:
                if not self._unnoted or self._unnoted[0].left > file.left_and_written:
                    return
                done = self._unnoted.popleft()
            self.finish(done.slots, done.entries, done.following)

    def finish(self, slots: list[Slot], entries: list[Entry], following: Slot | None = None) -> None:
        """Tensors are written: note that down and say so."""
        for entry in entries:
            self._check_strict(entry.tensor, entry.nonfinite)
        with self._lock:
            done = len(self.journal.entries)
            self.journal.add(entries)
            for number, slot in enumerate(slots, done + 1):
                self._done_bytes += slot.nbytes
                if self.options.progress is not None:
                    self.options.progress(self._state(slot, number, following))

    def _state(self, finished: Slot, done_tensors: int, following: Slot | None) -> Progress:
        return Progress(
            self._done_bytes,
            self._total_bytes,
            done_tensors,
            self._total_tensors,
            finished.name,
            None if following is None else following.name,
            self._resumed_bytes,
        )


def _unit_bytes(unit: list[Slot]) -> int:
    return sum(slot.nbytes for slot in unit)


def _most_bytes_of_one_thread(units: list[list[Slot]]) -> int:
    """Units below that size are computed side by side, a thread each; all threads share larger ones."""
    most_bytes = max(SMALL_BYTES, SIDE_BY_SIDE_BYTES // settings.threads)
    between = sum(SMALL_BYTES <= _unit_bytes(unit) < most_bytes for unit in units)
    return most_bytes if between >= SIDE_BY_SIDE_UNITS * settings.threads else SMALL_BYTES
