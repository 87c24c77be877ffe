"""Which device runs a pass: the CPU, or the GPU through Metal."""

from __future__ import annotations

import math
import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from lbrx.devices.cpu.run import SinkTarget
from lbrx.devices.cpu.run import run_pass as run_pass_on_cpu
from lbrx.engine.destination import ArrayDestination
from lbrx.engine.fuse import BoundPass
from lbrx.errors import UsageError, nearest
from lbrx.settings import DEVICES, settings
from lbrx.tensors.expr import Blocks, Concat, Expr, Kth, Map, Rank, Reduce, Source, Stored
from lbrx.tensors.shape import Layout
from lbrx.tensors.storage import CpuStorage, Storage

if TYPE_CHECKING:
    from lbrx.devices.metal.context import DriverName, MetalContext

DRIVER_VARIABLE = "LBRX_METAL_DRIVER"


class CpuFallback(UserWarning):
    """A pass that was meant for a GPU ran on the CPU. Each reason is told once."""


_context: MetalContext | None = None
_lock = threading.Lock()
_told: set[str] = set()
_records: list[list[BoundPass]] = []


def metal_context() -> MetalContext:
    """The GPU of this process, opened when it is first asked for.

    ``LBRX_METAL_DRIVER`` chooses how: ``native`` (an Apple GPU, the default), ``emulated`` (on the CPU, for tests) or
    ``auto``.
    """
    global _context
    with _lock:
        if _context is None:
            from lbrx.devices.metal.context import MetalContext
            from lbrx.devices.metal.driver.errors import MetalUnavailable

            name = os.environ.get(DRIVER_VARIABLE, "native")
            try:
                _context = MetalContext.open(cast("DriverName", name))
            except MetalUnavailable as error:
                raise MetalUnavailable(f"{error} (set {DRIVER_VARIABLE}=emulated to try it)") from error
        return _context


@contextmanager
def using_metal(context: MetalContext) -> Iterator[MetalContext]:
    """Use this device for the length of a ``with`` block."""
    global _context
    before, _context = _context, context
    try:
        yield context
    finally:
        _context = before


def _forget_device() -> None:
    """A forked process has no queue of its own on the device that its parent opened."""
    global _context, _lock
    _context, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_device)


def checked_device(name: str) -> str:
    """The name of a device, or a UsageError.

    >>> checked_device("metal")
    'metal'
    """
    if name not in DEVICES:
        raise UsageError(f"unknown device {name!r}; expected one of {', '.join(DEVICES)}{nearest(name, DEVICES)}")
    return name


@contextmanager
def recorded_passes() -> Iterator[list[BoundPass]]:
    """The passes that are run within a ``with`` block, in their order."""
    record: list[BoundPass] = []
    _records.append(record)
    try:
        yield record
    finally:
        _records[:] = [each for each in _records if each is not record]


def run_pass(bound: BoundPass, targets: list[SinkTarget]) -> list[Any]:
    """Run a pass where its inputs or its results are, or on the device of the settings.

    For each sink, the partial results of its blocks if it is a reduction, else None.
    """
    for record in tuple(_records):
        record.append(bound)
    if not bound.elements or not _is_for_metal(bound, targets):
        return run_pass_on_cpu(bound, targets)
    from lbrx.devices.metal.codegen.support import why_not
    from lbrx.devices.metal.run import run_pass_on_metal

    reason = why_not(bound.program)
    if reason is None:
        return run_pass_on_metal(metal_context(), bound, targets)
    tell_fallback(reason)
    return run_pass_on_cpu(bound, targets)


def _is_for_metal(bound: BoundPass, targets: list[SinkTarget]) -> bool:
    if settings.device == "metal":
        return True
    if any(leaf.storage is not None and leaf.storage.device == "metal" for leaf in bound.leaves):
        return True
    return any(getattr(getattr(target, "storage", None), "device", "cpu") == "metal" for target in targets)


def fallbacks() -> tuple[str, ...]:
    """Why passes of this process ran on the CPU although they were meant for a GPU."""
    with _lock:
        return tuple(sorted(_told))


def tell_fallback(reason: str) -> None:
    """Warn, once for each reason, that something was computed on the CPU instead."""
    with _lock:
        if reason in _told:
            return
        _told.add(reason)
    warnings.warn(f"computed on the CPU instead of Metal: {reason}", CpuFallback, stacklevel=3)


def device_of(expr: Expr) -> str:
    """Where the elements that an expression reads are: "metal" if any of them are there."""
    seen: set[int] = set()
    stack: list[Expr] = [expr]
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, (Source, Blocks)) and node.storage.device == "metal":
            return "metal"
        stack += _arguments(node)
    return "cpu"


def _arguments(node: Expr) -> tuple[Expr, ...]:
    if isinstance(node, (Map, Reduce)):
        return node.args
    if isinstance(node, Stored):
        return (node.inner,)
    if isinstance(node, Kth):
        return (node.search.arg,)
    if isinstance(node, Rank):
        return (node.arg,)
    return node.parts if isinstance(node, Concat) else ()


def moved(expr: Expr, device: str) -> Expr:
    """Stored elements or blocks on a device; an expression is computed, and its result stays there."""
    checked_device(device)
    if isinstance(expr, Source):
        return Source(_moved_storage(expr.storage, device), expr.dtype, expr.layout, expr.rows)
    if isinstance(expr, Blocks):
        return Blocks(_moved_storage(expr.storage, device), expr.codec, expr.shape, expr.values.storage)
    return Source(_computed(expr, device), expr.dtype, Layout.contiguous(expr.shape))


def _moved_storage(storage: Storage, device: str) -> Storage:
    from lbrx.devices.metal.context.storage import MetalStorage

    if device == "metal":
        return MetalStorage.from_storage(metal_context(), storage)
    return CpuStorage(storage.copy_to_cpu()) if isinstance(storage, MetalStorage) else storage


def _computed(expr: Expr, device: str) -> Storage:
    """The elements of an expression in memory of a device."""
    from lbrx.devices.metal.context.storage import MetalDestination
    from lbrx.engine.schedule import evaluate_stores

    elements = math.prod(expr.shape)
    if device == "metal":
        there = MetalDestination(metal_context(), expr.dtype, elements)
        evaluate_stores([(expr, there)])
        return there.storage
    here = ArrayDestination(expr.dtype, elements)
    evaluate_stores([(expr, here)])
    return CpuStorage(here.whole)
