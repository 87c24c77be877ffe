"""How many bytes lbrx may hold at once, in one process-wide account.

The rule that keeps it free of deadlocks: a thread that holds nothing waits until its request fits; a thread that
already holds a reservation never waits, because what it waits for might wait for it. So a piece of work asks for
all that it needs in one reservation, and a nested one, though counted, can push the account past its limit.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol
from weakref import WeakSet

from lbrx.base.fast_dataclass import dataclass
from lbrx.base.system import available_bytes, format_bytes, parse_bytes
from lbrx.errors import MemoryBudgetError, UsageError

__all__ = ["Budget", "Trimmable", "budget", "default_limit_bytes", "format_bytes", "parse_bytes", "set_budget"]

ENVIRONMENT_VARIABLE = "LBRX_MEMORY"
_MAX_DEFAULT_BYTES = 4 << 30
_DEFAULT_SHARE_OF_AVAILABLE = 4


class Trimmable(Protocol):
    """A holder of idle memory, which it gives back when another waits for memory."""

    def trim(self) -> int:
        """Free what is idle, and return how many bytes that was."""


@dataclass(slots=True)
class _Holding:
    """What one thread has reserved."""

    reservations: int = 0
    nbytes: int = 0


class Budget:
    """An account of bytes with a limit, safe to use from many threads.

    >>> account = Budget("1MiB")
    >>> with account.reserve(300_000, "a tile"):
    ...     account.used_bytes
    300000
    >>> account.used_bytes, account.peak_bytes
    (0, 300000)
    """

    def __init__(self, limit_bytes: int | str) -> None:
        self._limit_bytes = _positive(limit_bytes)
        self._used_bytes = 0
        self._peak_bytes = 0
        self._holdings: dict[int, _Holding] = {}  # by thread
        self._waiters = 0
        self._trimmables: WeakSet[Trimmable] = WeakSet()
        self._caches: WeakSet[Trimmable] = WeakSet()
        self._changed = threading.Condition()

    @property
    def limit_bytes(self) -> int:
        """The most bytes to hold at once; may be changed at any time."""
        return self._limit_bytes

    @limit_bytes.setter
    def limit_bytes(self, limit_bytes: int | str) -> None:
        with self._changed:
            self._limit_bytes = _positive(limit_bytes)
            self._changed.notify_all()

    @property
    def used_bytes(self) -> int:
        """Bytes held now."""
        return self._used_bytes

    @property
    def peak_bytes(self) -> int:
        """The most bytes that were held at once so far."""
        return self._peak_bytes

    @property
    def has_waiters(self) -> bool:
        """Whether some thread waits for memory now."""
        return self._waiters > 0

    @contextmanager
    def reserve(self, nbytes: int, what: str) -> Iterator[None]:
        """Hold nbytes for the length of a ``with`` block, waiting first while others hold too much.

        A thread that already holds a reservation does not wait. A request above the limit is a
        MemoryBudgetError; ``what`` names the work in its message.
        """
        if nbytes < 0:
            raise UsageError(f"{what} reserves {nbytes} bytes; expected zero or more")
        thread = threading.get_ident()
        holding = self._holdings.get(thread)
        if holding is None:
            self._hold_when_it_fits(thread, nbytes, what)
        else:
            self._check_fits(holding.nbytes + nbytes, what)
            with self._changed:
                self._hold(thread, nbytes)
        try:
            yield
        finally:
            with self._changed:
                self._let_go(thread, nbytes)

    def charge(self, nbytes: int) -> None:
        """Count memory that no thread owns, such as a pool's, without waiting; ``release`` counts it back."""
        with self._changed:
            self._add(nbytes)
            caches = list(self._caches) if self._used_bytes > self._limit_bytes else []
        for cache in caches:  # without the lock, as in _trim_idle
            cache.trim()

    def release(self, nbytes: int) -> None:
        """Give back what was charged."""
        with self._changed:
            self._add(-nbytes)

    def register(self, holder: Trimmable, *, is_cache: bool = False) -> None:
        """Let a holder of charged, idle memory be trimmed before anyone waits; it is not kept alive by this.

        A cache is also trimmed when a charge exceeds the limit.
        """
        with self._changed:
            self._trimmables.add(holder)
            if is_cache:
                self._caches.add(holder)

    def _hold_when_it_fits(self, thread: int, nbytes: int, what: str) -> None:
        self._check_fits(nbytes, what)
        with self._changed:
            if self._used_bytes + nbytes <= self._limit_bytes:
                self._hold(thread, nbytes)
                return
            self._waiters += 1
        try:
            # Only now that others can see a waiter, and pool nothing more, does one trimming suffice.
            self._trim_idle()
            with self._changed:
                while self._used_bytes + nbytes > self._limit_bytes:
                    self._changed.wait()
                    self._check_fits(nbytes, what)
                self._hold(thread, nbytes)
        finally:
            with self._changed:
                self._waiters -= 1

    def _trim_idle(self) -> None:
        with self._changed:
            holders = list(self._trimmables)
        for holder in holders:  # without the lock: trimming releases what it frees
            holder.trim()

    def _hold(self, thread: int, nbytes: int) -> None:
        holding = self._holdings.setdefault(thread, _Holding())
        holding.reservations += 1
        holding.nbytes += nbytes
        self._add(nbytes)

    def _let_go(self, thread: int, nbytes: int) -> None:
        holding = self._holdings[thread]
        holding.reservations -= 1
        holding.nbytes -= nbytes
        if holding.reservations == 0:
            del self._holdings[thread]
        self._add(-nbytes)

    def _add(self, nbytes: int) -> None:
        self._used_bytes += nbytes
        self._peak_bytes = max(self._peak_bytes, self._used_bytes)
        if nbytes < 0 and self._waiters:
            self._changed.notify_all()

    def _check_fits(self, nbytes: int, what: str) -> None:
        if nbytes > self._limit_bytes:
            raise MemoryBudgetError(
                f"{what} needs {format_bytes(nbytes)} of memory, but the limit is "
                f"{format_bytes(self._limit_bytes)}; set {ENVIRONMENT_VARIABLE} or --memory to allow more"
            )


def default_limit_bytes() -> int:
    """LBRX_MEMORY if set, else a quarter of the memory available now, at most 4 GiB."""
    chosen = os.environ.get(ENVIRONMENT_VARIABLE)
    if chosen:
        return _positive(chosen)
    return max(min(available_bytes() // _DEFAULT_SHARE_OF_AVAILABLE, _MAX_DEFAULT_BYTES), 1)


_process_budget: Budget | None = None
_process_budget_lock = threading.Lock()


def budget() -> Budget:
    """The account of this process, made with the default limit at the first call.

    >>> budget() is budget()
    True
    """
    global _process_budget
    with _process_budget_lock:
        if _process_budget is None:
            _process_budget = Budget(default_limit_bytes())
        return _process_budget


def set_budget(limit_bytes: int | str) -> Budget:
    """Change the limit of this process's account, for work under way as well, and return the account."""
    global _process_budget
    with _process_budget_lock:
        if _process_budget is None:
            _process_budget = Budget(limit_bytes)
        else:
            _process_budget.limit_bytes = _positive(limit_bytes)
        return _process_budget


def _positive(limit_bytes: int | str) -> int:
    nbytes = parse_bytes(limit_bytes)
    if nbytes == 0:
        raise UsageError(f"a memory limit of {limit_bytes!r} lets nothing run; expected at least 1 byte")
    return nbytes
