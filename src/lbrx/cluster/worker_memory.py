"""The memory of a worker: the most that it had during a task, and running out of it."""

from __future__ import annotations

import os
import socket
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Self

from lbrx.base import system
from lbrx.cluster.options import WorkerMemoryError
from lbrx.errors import MemoryBudgetError
from lbrx.memory.scratch import scratch_arena

_SAMPLE_SECONDS = 0.05


class PeakMemory:
    """The most memory that no file backs, looked at all the time for the length of a ``with`` block.

    If the system refuses a thread, it is looked at in the beginning and at the end only.

    >>> with PeakMemory() as peak:
    ...     values = bytearray(1 << 20)
    >>> peak.nbytes > 1 << 20
    True
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self._is_over = threading.Event()
        self._sampler = threading.Thread(target=self._sample, name="peak-memory", daemon=True)

    def __enter__(self) -> Self:
        self._look()
        with suppress(RuntimeError):  # no more threads, or no memory for one
            self._sampler.start()
        return self

    def __exit__(
        self, error_class: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._is_over.set()
        if self._sampler.ident is not None:
            self._sampler.join()
        self._look()

    def _sample(self) -> None:
        while not self._is_over.wait(_SAMPLE_SECONDS):
            self._look()

    def _look(self) -> None:
        self.nbytes = max(self.nbytes, system.anonymous_bytes())


@contextmanager
def explaining_memory_errors() -> Iterator[None]:
    """Say which process ran out of memory. References of the failed work are dropped, because the process continues."""
    try:
        yield
    except MemoryBudgetError:
        raise
    except MemoryError as error:
        traceback.clear_frames(error.__traceback__)
        scratch_arena().trim()
        raise WorkerMemoryError(
            f"process {os.getpid()} on {socket.gethostname()} ran out of memory; "
            "expected room for its buffers: give tasks less --memory, or fewer tasks to a node by more --threads"
        ) from None
