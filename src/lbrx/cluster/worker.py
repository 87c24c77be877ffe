"""What runs on the nodes: plans made once in each process, kernels made ready by one at a time, slots written."""

from __future__ import annotations

import os
import socket
import time
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from lbrx.base import system
from lbrx.base.fast_dataclass import dataclass
from lbrx.base.file_lock import file_lock
from lbrx.cluster.worker_memory import PeakMemory
from lbrx.engine.destination import ArrayDestination
from lbrx.engine.evaluate import evaluate_stores
from lbrx.errors import FileError
from lbrx.files.formats.header import FileLayout, Slot
from lbrx.files.output.file_writer import FileWriter
from lbrx.files.output.journal import Entry
from lbrx.files.output.plan import OutputPlan, digest
from lbrx.files.output.slots import units_of, write_batch
from lbrx.files.output.staging import Staging
from lbrx.files.remote.filesystem import RemoteState
from lbrx.files.remote.paths import RemotePath
from lbrx.files.remote.settings import work_directory
from lbrx.memory.limits import limited
from lbrx.tensors.expr import Coded

_PATIENCE_SECONDS = 30.0  # with the process that compiles kernels; two at once would only do the same work
_WARMED_BYTES = 64 << 20  # larger slots are not representative
_plans: OrderedDict[str, OutputPlan] = OrderedDict()


@dataclass(frozen=True)
class Order:
    """What all tasks of a run have in common. Each worker makes the plan by the call of the driver, where that was."""

    run: str
    plan_call: partial[OutputPlan]
    directory: str
    layout_digest: str
    partial: Path
    threads: int
    memory_bytes: int
    sync: bool
    driver_host: str
    bucket: RemotePath | None = None  # where files go that are not made on a shared file system


@dataclass(frozen=True)
class TaskReport:
    """What a task did, where, what time it took, and the most memory of its process that no file backs."""

    number: int
    entries: tuple[Entry, ...]
    host: str
    process: int
    seconds: float
    processor_seconds: float
    memory_bytes: int
    uploaded: RemoteState | None = None


def perform(order: Order, number: int, layout_index: int, slots: tuple[Slot, ...]) -> TaskReport:
    """Compute slots into a file that the driver has made."""
    started, processor_started = time.monotonic(), time.process_time()
    with limited(order.threads, order.memory_bytes), PeakMemory() as peak:
        plan = _plan(order)
        if order.bucket is not None:
            entries, uploaded = _upload(plan, plan.layouts[layout_index], order.run, order.bucket)
        else:
            entries, uploaded = _write(plan, order.partial / plan.layouts[layout_index].name, slots, order), None
    return TaskReport(
        number,
        entries,
        socket.gethostname(),
        os.getpid(),
        time.monotonic() - started,
        time.process_time() - processor_started,
        peak.nbytes,
        uploaded,
    )


def _write(plan: OutputPlan, path: Path, slots: tuple[Slot, ...], order: Order) -> tuple[Entry, ...]:
    descriptor = _opened(path)
    try:
        entries = _written(plan, slots, descriptor, path)
        if order.sync and socket.gethostname() != order.driver_host:
            system.flush_to_disk(descriptor, path)  # what a node has not sent out dies with it
    finally:
        os.close(descriptor)
    return entries


def _written(plan: OutputPlan, slots: Sequence[Slot], descriptor: int, path: Path) -> tuple[Entry, ...]:
    file = FileWriter(descriptor, path)
    return tuple(entry for unit in units_of(plan, slots) for entry in write_batch(plan, [unit], file))


def _upload(
    plan: OutputPlan, layout: FileLayout, run: str, bucket: RemotePath
) -> tuple[tuple[Entry, ...], RemoteState]:
    """Make a whole file on this machine, upload it and remove it."""
    from lbrx.files.remote.uploading import upload

    staging = Staging(work_directory() / f"{run}-{socket.gethostname()}-{os.getpid()}-{layout.name}")
    staging.make_parent()
    staging.prepare(discard=True)
    path = staging.partial / layout.name
    try:
        descriptor = staging.open_file(layout.name, layout.file_bytes, layout.header)
        try:
            entries = _written(plan, layout.slots, descriptor, path)
        finally:
            os.close(descriptor)
        return entries, upload(path, bucket / layout.name)
    finally:
        system.remove_tree(staging.partial)


def _opened(path: Path) -> int:
    try:
        return system.open_write(path, must_exist=True)
    except FileError as error:
        raise FileError(
            f"{error} (on {socket.gethostname()}); expected the output on a file system that all nodes share"
        ) from error


def _plan(order: Order) -> OutputPlan:
    """The plan of a run; a process keeps that of the last one only."""
    plan = _plans.get(order.run)
    if plan is None:
        os.chdir(order.directory)
        plan = order.plan_call()
        if layout_digest(plan) != order.layout_digest:
            raise FileError(
                f"{order.directory}: this worker plans another output than the driver; "
                "expected the same models at the same paths on every node"
            )
        with alone():
            _warm(plan)
        _plans.clear()
        _plans[order.run] = plan
    return plan


def layout_digest(plan: OutputPlan) -> str:
    """A short name for the files of a plan: a worker whose plan has another one sees other models."""
    return digest(*(layout.header for layout in plan.layouts))


def alone() -> AbstractContextManager[None]:
    """A lock between the processes of a machine, ignored after a while, because its owner may hang."""
    return file_lock(system.cache_directory() / "cluster-kernels.lock", wait_seconds=_PATIENCE_SECONDS)


def _warm(plan: OutputPlan) -> None:
    """Compute the smallest tensor of each type and rank for its kernels alone.

    The lock around this lets the first process of a machine compile them; the others find them in its cache.
    """
    examples: dict[tuple[str, int], Slot] = {}
    for layout in plan.layouts:
        for slot in layout.slots:
            type_and_rank = (slot.type_name, len(slot.shape))
            if (
                0
                < slot.nbytes
                < min(examples[type_and_rank].nbytes if type_and_rank in examples else _WARMED_BYTES, _WARMED_BYTES)
            ):
                examples[type_and_rank] = slot
    for slot in examples.values():
        expr = plan.tensor(slot.name).expr
        if not isinstance(expr, Coded) and expr.shape:
            evaluate_stores([(expr, ArrayDestination(expr.dtype, _elements(expr.shape)))])


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
