"""Settings of the process: how many threads, how large a piece of work each takes at a time, and on which device.

Results never depend on threads and pieces.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lbrx.base import system
from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import UsageError
from lbrx.registry import DEVICES


@dataclass(slots=True)
class Settings:
    """``threads``: workers of a pass. ``chunk_elements``: elements that a worker takes at a time. ``device``: where
    passes run whose inputs are in files or in memory. ``raw``: open checkpoints whose quantization lbrx cannot decode,
    with the stored codes as values."""

    threads: int
    chunk_elements: int = 1 << 20
    device: str = "cpu"
    raw: bool = False


def _threads_from_environment() -> int:
    text = os.environ.get("LBRX_THREADS")
    if text is None:
        return system.cpu_count()
    if not text.isdigit() or int(text) < 1:
        raise UsageError(f"LBRX_THREADS is {text!r}; expected a whole number of at least 1")
    return int(text)


def _device_from_environment() -> str:
    name = os.environ.get("LBRX_DEVICE", "cpu")
    if name not in DEVICES:
        raise UsageError(f"LBRX_DEVICE is {name!r}; expected one of {', '.join(DEVICES)}")
    return name


compile_listeners: list[Callable[[], None]] = []
"""Called before a kernel is compiled, which can take seconds."""

settings = Settings(threads=_threads_from_environment(), device=_device_from_environment())


@contextmanager
def using(
    *,
    threads: int | None = None,
    chunk_elements: int | None = None,
    device: str | None = None,
    raw: bool | None = None,
) -> Iterator[Settings]:
    """Settings for the length of a ``with`` block.

    >>> with using(threads=1) as current:
    ...     current.threads
    1
    """
    if threads is not None and threads < 1:
        raise UsageError(f"{threads} threads were asked for; expected at least 1")
    if chunk_elements is not None and chunk_elements < 1:
        raise UsageError(f"chunks of {chunk_elements} elements were asked for; expected at least 1")
    if device is not None and device not in DEVICES:
        raise UsageError(f"unknown device {device!r}; expected one of {', '.join(DEVICES)}")
    before = (settings.threads, settings.chunk_elements, settings.device, settings.raw)
    settings.threads = threads or settings.threads
    settings.chunk_elements = chunk_elements or settings.chunk_elements
    settings.device = device or settings.device
    settings.raw = settings.raw if raw is None else raw
    try:
        yield settings
    finally:
        settings.threads, settings.chunk_elements, settings.device, settings.raw = before
