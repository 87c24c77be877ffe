"""A cache of whole tensors that jobs read again and again, such as a model that generates text."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any

from lbrx.base.system import format_bytes
from lbrx.memory.budget import Budget, budget
from lbrx.memory.cache import ByteLRU, CacheStatistics

_WHOLE_USE = 1 - 1e-6  # parts that are read one after the other add up to it
_USES_BEFORE_HALVING = 16  # of a tensor on average
_FORGOTTEN_USE = 0.01


class TensorCache:
    """Keeps tensors that are used more than once, decoded in memory or on a device (see `lbrx.open`).

    A tensor is kept when it is used for the second time. The least recently used tensors are dropped for it, but only
    if each of them was used less often, so that reading a model which is larger than the cache again and again does
    not drop every tensor just before its next use. Old uses count less and less.

    Kept bytes are charged to the budget of the process. They are dropped when other work needs the memory.

    >>> cache = TensorCache("1MiB")
    >>> cache.statistics().held_bytes, cache.limit_bytes
    (0, 1048576)
    """

    def __init__(self, limit_bytes: int | str, budget: Budget | None = None) -> None:
        self._values: ByteLRU[Hashable, Any] = ByteLRU(limit_bytes, budget=budget or _process_budget())
        self._uses: dict[Hashable, float] = {}
        self._all_uses = 0.0
        self._lock = threading.Lock()

    @property
    def limit_bytes(self) -> int:
        """The most bytes to keep."""
        return self._values.limit_bytes

    def get_or_create(self, key: Hashable, nbytes: int, share: float, factory: Callable[[], Any]) -> Any:
        """Return the value of a key, or None if it is not worth keeping yet. The factory makes a value of ``nbytes``.

        ``share`` is the part of the tensor that is used now, at most 1.
        """
        uses = self._count(key, share)
        kept = self._values.get(key)
        if kept is not None or not self._is_worth(nbytes, uses):
            return kept
        return self._values.get_or_create(key, factory)

    def statistics(self) -> CacheStatistics:
        """Return hits, misses and evictions since the cache was made, and what it holds now."""
        return self._values.statistics()

    def __repr__(self) -> str:
        found = self.statistics()
        held = f"{format_bytes(found.held_bytes)} of {format_bytes(self.limit_bytes)}"
        return f"TensorCache({held} in {found.entries} tensors, {found.hits} hits, {found.misses} misses)"

    def clear(self) -> None:
        """Drop all tensors and forget their uses."""
        with self._lock:
            self._uses.clear()
            self._all_uses = 0.0
        self._values.trim()

    def _count(self, key: Hashable, share: float) -> float:
        """Count a use, and return the uses before it."""
        with self._lock:
            before = self._uses.get(key, 0.0)
            self._uses[key] = before + share
            self._all_uses += share
            if self._all_uses > _USES_BEFORE_HALVING * len(self._uses):
                self._uses = {each: uses / 2 for each, uses in self._uses.items() if uses > 2 * _FORGOTTEN_USE}
                self._all_uses = sum(self._uses.values())
            return before

    def _is_worth(self, nbytes: int, uses: float) -> bool:
        room_bytes = self._values.room_bytes()
        if uses < _WHOLE_USE or nbytes > room_bytes:
            return False
        victims = self._values.oldest(nbytes - (room_bytes - self._values.statistics().held_bytes))
        return all(self._uses.get(victim, 0.0) < uses for victim in victims)


def _process_budget() -> Budget:
    return budget()
