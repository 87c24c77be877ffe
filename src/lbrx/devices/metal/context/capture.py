"""Traces of the GPU for Xcode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.driver.native import NativeDriver
from lbrx.errors import UsageError


@contextmanager
def captured(context: MetalContext, path: Path) -> Iterator[None]:
    """Record what a context dispatches within a ``with`` block as a ``.gputrace`` document.

    macOS allows it only with ``MTL_CAPTURE_ENABLED=1`` in the environment. Dispatches carry the names of their kernels.
    """
    driver = context.driver
    if not isinstance(driver, NativeDriver):
        raise UsageError(f"{path}: a trace needs an Apple GPU; the emulator has none")
    context.synchronize()
    with driver.capture(path):
        yield
        context.synchronize()
