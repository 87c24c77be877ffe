"""Buffers that are used again: allocating one costs a system call and page faults, taking one from here nothing."""

from __future__ import annotations

import threading
from collections import deque

from lbrx.base.system import format_bytes, parse_bytes
from lbrx.devices.metal.driver import Buffer, Driver
from lbrx.errors import MemoryBudgetError, UsageError
from lbrx.memory.arena import PoolStatistics, size_class


class BufferPool:
    """Lends buffers by size classes of at most a quarter more than what was asked for.

    A buffer may be returned while the device still works on it. It is lent again when that work is done, or at once
    to a borrower who only lets the device touch it: the device works in order.

    >>> from lbrx.devices.metal.emulator.driver import EmulatedDriver
    >>> pool = BufferPool(EmulatedDriver(), limit_bytes=1 << 20)
    >>> buffer = pool.get_buffer(1000)
    >>> pool.return_buffer(buffer)
    >>> pool.get_buffer(900) is buffer, pool.statistics().hits
    (True, 1)
    """

    def __init__(self, driver: Driver, limit_bytes: int | str | None = None) -> None:
        self._driver = driver
        self._limit_bytes = driver.info.working_set_bytes if limit_bytes is None else parse_bytes(limit_bytes)
        self._free: dict[int, deque[Buffer]] = {}  # by capacity, oldest first
        self._lent: dict[int, Buffer] = {}  # by identity
        self._hits = 0
        self._misses = 0
        self._held_bytes = 0
        self._lock = threading.RLock()

    def get_buffer(self, nbytes: int, *, host_access: bool = True) -> Buffer:
        """A buffer of exactly ``nbytes`` with unspecified contents.

        Without ``host_access`` the caller promises that only the device reads and writes it before it is returned or
        the device's work is waited for.
        """
        if nbytes < 0:
            raise UsageError(f"a buffer of {nbytes} bytes was asked for; expected zero or more")
        capacity = min(size_class(nbytes), max(nbytes, self._driver.info.max_buffer_bytes))
        with self._lock:
            buffer = self._take(capacity, nbytes, host_access)
            if buffer is not None:
                self._hits += 1
            else:
                self._misses += 1
                self._free_idle(capacity)
                buffer = self._driver.allocate(capacity)
                self._held_bytes += capacity
                if buffer.nbytes != nbytes:
                    buffer.fit(nbytes)
            self._lent[id(buffer)] = buffer
            return buffer

    def return_buffer(self, buffer: Buffer) -> None:
        """Take a buffer back; the caller must not use it any more."""
        with self._lock:
            if self._lent.pop(id(buffer), None) is None:
                raise UsageError(
                    f"a buffer of {buffer.nbytes} bytes was returned to a pool that did not lend it, or returned twice"
                )
            self._free.setdefault(buffer.capacity_bytes, deque()).append(buffer)

    def trim(self, keep_bytes: int = 0) -> int:
        """Free idle buffers until at most ``keep_bytes`` of them are left; how many bytes were freed.

        Buffers that the device still works on stay.
        """
        with self._lock:
            freed = 0
            for capacity in sorted(self._free, reverse=True):
                idle = self._free[capacity]
                for _ in range(len(idle)):
                    if self._free_bytes() <= keep_bytes:
                        return freed
                    buffer = idle.popleft()
                    if _is_done(buffer):
                        self._drop(buffer)
                        freed += capacity
                    else:
                        idle.append(buffer)
            return freed

    def statistics(self) -> PoolStatistics:
        """Counts since the pool was made, and the bytes that it holds."""
        with self._lock:
            free_bytes = self._free_bytes()
            return PoolStatistics(self._hits, self._misses, self._held_bytes - free_bytes, free_bytes)

    def _free_bytes(self) -> int:
        return sum(capacity * len(idle) for capacity, idle in self._free.items())

    def _drop(self, buffer: Buffer) -> None:
        self._held_bytes -= buffer.capacity_bytes
        buffer.release()

    def _take(self, capacity: int, nbytes: int, host_access: bool) -> Buffer | None:
        idle = self._free.get(capacity, deque())
        for buffer in tuple(idle):  # a finalizer may give a buffer back in the middle of this
            if _is_done(buffer):
                idle.remove(buffer)
                buffer.last_use = None
                buffer.fit(nbytes)
                return buffer
            if not host_access and buffer.nbytes == nbytes:
                idle.remove(buffer)
                return buffer
        return None

    def _free_idle(self, capacity: int) -> None:
        """Free idle buffers, then wait for those that are in flight, until a new one fits below the limit."""
        most_bytes = self._limit_bytes - capacity
        if self._held_bytes > most_bytes:
            self.trim(max(0, self._free_bytes() - (self._held_bytes - most_bytes)))
        while self._held_bytes > most_bytes and self._free_bytes():
            buffer = next(buffer for idle in self._free.values() for buffer in idle)
            if buffer.last_use is not None:
                buffer.last_use.wait()
            self._free[buffer.capacity_bytes].remove(buffer)
            self._drop(buffer)
        if self._held_bytes > most_bytes:
            raise MemoryBudgetError(
                f"a buffer of {format_bytes(capacity)} does not fit: {format_bytes(self._held_bytes)} of "
                f"{format_bytes(self._limit_bytes)} on {self._driver.info.name} are in use; "
                "use smaller chunks, or raise the limit"
            )


def _is_done(buffer: Buffer) -> bool:
    return buffer.last_use is None or buffer.last_use.done
