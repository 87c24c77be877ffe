"""A cache of values limited by their bytes, least recently used out first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import field
from typing import Any, Generic, TypeVar

from lbrx.base.fast_dataclass import dataclass
from lbrx.base.system import parse_bytes
from lbrx.errors import UsageError
from lbrx.memory.budget import Budget

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """What a cache did and holds."""

    hits: int
    misses: int
    evictions: int
    entries: int
    held_bytes: int


@dataclass(eq=False, slots=True)
class _Creation(Generic[V]):
    """A value that one thread computes and others may wait for."""

    thread: int
    finished: threading.Event = field(default_factory=threading.Event)
    results: list[V] = field(default_factory=list)  # one value, or none if the factory failed


def nbytes_of(value: Any) -> int:
    """The bytes of an array, or of any object with ``nbytes``; else its length."""
    nbytes = getattr(value, "nbytes", None)
    return int(nbytes) if nbytes is not None else len(value)


class ByteLRU(Generic[K, V]):
    """Keeps values, such as decoded tensors, within a limit of bytes; safe to use from many threads.

    ``size_of`` gives the bytes of a value; by default they are its ``nbytes`` or its length. A value larger than
    the whole limit is handed out but not kept. With a budget, kept bytes are charged to it: the cache holds no more
    than the budget has left, and drops everything when someone waits for memory or others exceed the limit.

    >>> cache = ByteLRU(limit_bytes=10)
    >>> cache.put("a", b"12345678")
    >>> cache.get_or_create("b", lambda: b"4567")  # evicts "a"
    b'4567'
    >>> cache.get("a"), len(cache), cache.statistics().evictions
    (None, 1, 1)
    """

    def __init__(
        self, limit_bytes: int | str, size_of: Callable[[V], int] = nbytes_of, budget: Budget | None = None
    ) -> None:
        self._limit_bytes = parse_bytes(limit_bytes)
        self._size_of = size_of
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()  # the most recently used last
        self._creations: dict[K, _Creation[V]] = {}
        self._held_bytes = 0
        self._hits = 0
        self._misses = 0
        self._evictions = 0
        self._lock = threading.RLock()  # re-entered when a collection inside the lock drops a cache or a buffer
        self._budget = budget
        if budget is not None:
            budget.register(self, is_cache=True)

    @property
    def limit_bytes(self) -> int:
        """The largest number of bytes to keep."""
        return self._limit_bytes

    def room_bytes(self) -> int:
        """The most bytes that the cache can hold now: its limit, or less if the budget has less left."""
        if self._budget is None:
            return self._limit_bytes
        return min(self._limit_bytes, self._held_bytes + self._budget.limit_bytes - self._budget.used_bytes)

    def trim(self) -> int:
        """Drop everything, and return how many bytes that was."""
        with self._lock:
            dropped, self._entries = self._entries, OrderedDict()
            freed_bytes, self._held_bytes = self._held_bytes, 0
            self._evictions += len(dropped)
        self._settle(-freed_bytes)
        return freed_bytes

    def get(self, key: K) -> V | None:
        """The value of a key, now the most recently used, or None."""
        with self._lock:
            entry = self._find(key)
            return entry[0] if entry is not None else None

    def put(self, key: K, value: V) -> None:
        """Keep a value, in place of an earlier one of its key; also in place of one that is being computed."""
        nbytes = self._size_of(value)
        with self._lock:
            self._creations.pop(key, None)
            dropped, change = self._keep(key, value, nbytes)
        self._settle(change)
        del dropped

    def get_or_create(self, key: K, factory: Callable[[], V]) -> V:
        """The value of a key; the factory computes it if it is missing.

        While one thread computes a value, others that want it wait for it. If the factory fails, its error goes
        to the thread that ran it, and one of those that waited tries again. A factory may use the cache, but
        not ask for its own key.
        """
        while True:
            with self._lock:
                entry = self._find(key)
                if entry is not None:
                    return entry[0]
                creation = self._creations.get(key)
                if creation is None:
                    mine = self._creations[key] = _Creation(threading.get_ident())
                    break
            if creation.thread == threading.get_ident():
                raise UsageError(f"the factory of cache entry {key!r} asks for that same entry")
            creation.finished.wait()
            if creation.results:
                return creation.results[0]
        return self._create(key, factory, mine)

    def oldest(self, nbytes: int) -> list[K]:
        """The keys that would be dropped to free so many bytes."""
        with self._lock:
            keys: list[K] = []
            for key, (_, held_bytes) in self._entries.items():
                if nbytes <= 0:
                    break
                keys.append(key)
                nbytes -= held_bytes
            return keys

    def statistics(self) -> CacheStatistics:
        """Counts since the cache was made, and what it holds now."""
        with self._lock:
            return CacheStatistics(self._hits, self._misses, self._evictions, len(self._entries), self._held_bytes)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def _find(self, key: K) -> tuple[V, int] | None:
        entry = self._entries.get(key)
        if entry is None:
            self._misses += 1
        else:
            self._hits += 1
            self._entries.move_to_end(key)
        return entry

    def _create(self, key: K, factory: Callable[[], V], creation: _Creation[V]) -> V:
        try:
            value = factory()
            nbytes = self._size_of(value)
            creation.results.append(value)
            with self._lock:
                is_wanted = self._creations.get(key) is creation
                dropped, change = self._keep(key, value, nbytes) if is_wanted else ([], 0)
            self._settle(change)
            del dropped
            return value
        finally:
            with self._lock:
                if self._creations.get(key) is creation:
                    del self._creations[key]
            creation.finished.set()

    def _keep(self, key: K, value: V, nbytes: int) -> tuple[list[V], int]:
        """Keep a value. Return those that went for it, so that they are freed after the lock is, and the change of
        the held bytes."""
        before, room_bytes = self._held_bytes, self.room_bytes()
        dropped: list[V] = []
        earlier = self._entries.pop(key, None)
        if earlier is not None:
            self._held_bytes -= earlier[1]
            dropped.append(earlier[0])
        if nbytes > room_bytes:
            return dropped, self._held_bytes - before
        while self._held_bytes + nbytes > room_bytes:
            _, (evicted, evicted_bytes) = self._entries.popitem(last=False)
            self._held_bytes -= evicted_bytes
            self._evictions += 1
            dropped.append(evicted)
        self._entries[key] = (value, nbytes)
        self._held_bytes += nbytes
        return dropped, self._held_bytes - before

    def _settle(self, change: int) -> None:
        """Tell the budget. Its lock is never taken inside that of the cache."""
        if self._budget is not None and change > 0:
            self._budget.charge(change)
        elif self._budget is not None and change < 0:
            self._budget.release(-change)

    def __del__(self) -> None:
        budget = getattr(self, "_budget", None)
        if budget is not None:
            budget.release(self._held_bytes)
