"""The GPU of this process, opened when it is first used."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from lbrx.devices.metal.context import DriverName, MetalContext
from lbrx.devices.metal.driver.errors import MetalUnavailable

DRIVER_VARIABLE = "LBRX_METAL_DRIVER"
_context: MetalContext | None = None
_lock = threading.Lock()


def metal_context() -> MetalContext:
    """The GPU of this process.

    ``LBRX_METAL_DRIVER`` chooses how it is opened: ``native`` (an Apple GPU, the default), ``emulated`` (on the CPU,
    for tests) or ``auto``.
    """
    global _context
    with _lock:
        if _context is None:
            name = os.environ.get(DRIVER_VARIABLE, "native")
            try:
                _context = MetalContext.open(cast(DriverName, name))
            except MetalUnavailable as error:
                raise MetalUnavailable(f"{error} (set {DRIVER_VARIABLE}=emulated to try it)") from error
        return _context


@contextmanager
def using_metal(context: MetalContext) -> Iterator[MetalContext]:
    """Use this GPU for the length of a ``with`` block."""
    global _context
    before, _context = _context, context
    try:
        yield context
    finally:
        _context = before


def _forget_context() -> None:
    """A forked process has no queue of its own on the GPU that its parent opened."""
    global _context, _lock
    _context, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_context)
