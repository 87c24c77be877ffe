"""Mapped files as buffers: pages are wrapped once, and the windows that were used last are kept.

Wrapping maps pages into the GPU, and freeing the buffer takes them out again. A model reads each weight for every
token, and a merge of several passes reads the same chunks again: both find the window of the time before.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from typing import NamedTuple

from lbrx.base.fast_dataclass import dataclass
from lbrx.base.system import page_bytes
from lbrx.devices.metal.driver import Buffer, Driver
from lbrx.tensors.open_file import OpenFile

_GRANULE_BYTES = 1 << 20  # windows begin and end at multiples in the file, so that small neighbours share one


@dataclass(slots=True)
class WindowStatistics:
    """What the cache did and holds."""

    hits: int = 0
    wrapped: int = 0
    evicted: int = 0
    refused: int = 0
    held_bytes: int = 0


class Window(NamedTuple):
    """A buffer, and where in it the pages begin that were asked for."""

    buffer: Buffer
    offset: int


class WindowCache:
    """Buffers over pages of mapped files, limited by bytes; the least recently used go first.

    A buffer that goes stays valid for whoever uses it. Windows of a file go with the file, so the cache keeps no file
    open. By default the limit is half of the working set that Metal recommends.
    """

    def __init__(self, driver: Driver, limit_bytes: int | None = None) -> None:
        self.statistics = WindowStatistics()
        self._driver = driver
        self._limit_bytes = driver.info.working_set_bytes // 2 if limit_bytes is None else limit_bytes
        self._windows: OrderedDict[tuple[int, int, int], Buffer] = OrderedDict()  # by file, address and bytes
        self._of_file: dict[int, set[tuple[int, int, int]]] = {}
        self._lock = threading.RLock()  # the end of a file may come in the middle of a call

    @property
    def takes_pages(self) -> bool:
        """Whether the device has taken pages so far: virtual Macs take none."""
        return not self.statistics.refused

    def wrap(self, file: OpenFile, address: int, nbytes: int, *, resident: bool = False) -> Window | None:
        """Whole pages of a mapped file as a buffer, or None if the device does not take them."""
        first, end = self._rounded(file, address, address + nbytes)
        key = (id(file), first, end - first)
        with self._lock:
            buffer = self._windows.get(key)
            if buffer is not None:
                self._windows.move_to_end(key)
                self.statistics.hits += 1
                return Window(buffer, address - first)
            buffer = self._driver.wrap(first, end - first, file.pinned or file, resident=resident)
            if buffer is None:
                self.statistics.refused += 1
                return None
            self.statistics.wrapped += 1
            self._keep(file, key, buffer)
            return Window(buffer, address - first)

    def clear(self) -> None:
        """Let all windows go."""
        with self._lock:
            self._windows.clear()
            self._of_file.clear()
            self.statistics.held_bytes = 0

    def _rounded(self, file: OpenFile, first: int, end: int) -> tuple[int, int]:
        """Rounded out to granules of the file, unless that is too large for a buffer."""
        start = file.address
        assert start is not None
        low = start + (first - start) // _GRANULE_BYTES * _GRANULE_BYTES
        mapped_end = start + -(-file.file_bytes // page_bytes()) * page_bytes()
        high = min(start + -(-(end - start) // _GRANULE_BYTES) * _GRANULE_BYTES, mapped_end)
        return (low, high) if high - low <= self._driver.info.max_buffer_bytes else (first, end)

    def _keep(self, file: OpenFile, key: tuple[int, int, int], buffer: Buffer) -> None:
        nbytes = key[2]
        if nbytes > self._limit_bytes:
            return
        while self.statistics.held_bytes + nbytes > self._limit_bytes:
            oldest, _ = self._windows.popitem(last=False)
            self._of_file.get(oldest[0], set()).discard(oldest)
            self.statistics.held_bytes -= oldest[2]
            self.statistics.evicted += 1
        self._windows[key] = buffer
        self.statistics.held_bytes += nbytes
        if key[0] not in self._of_file:
            self._of_file[key[0]] = set()
            weakref.finalize(file, _forget, weakref.ref(self), key[0]).atexit = False
        self._of_file[key[0]].add(key)

    def forget(self, file: int) -> None:
        """Let the windows of a file go, which is closed."""
        with self._lock:
            for key in self._of_file.pop(file, set()):
                if self._windows.pop(key, None) is not None:
                    self.statistics.held_bytes -= key[2]


def _forget(reference: weakref.ref[WindowCache], file: int) -> None:
    cache = reference()
    if cache is not None:
        cache.forget(file)
