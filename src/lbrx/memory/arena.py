"""Aligned buffers that are used again instead of being allocated again.

A fresh large allocation costs a page fault for every page that is touched; a pooled one costs about a
microsecond. Buffers are pooled by size classes of at most a quarter more than what was asked for.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Literal, TypeAlias, get_args
from weakref import finalize, ref

import numpy as np
from numpy.typing import NDArray

from lbrx.base.fast_dataclass import dataclass
from lbrx.base.system import PinnedMapping, format_bytes, page_bytes, parse_bytes
from lbrx.errors import MemoryBudgetError, UsageError
from lbrx.memory.budget import Budget

Strategy: TypeAlias = Literal["arena", "heap", "mapping"]
Bytes: TypeAlias = NDArray[np.uint8]

_HUGE_PAGE_BYTES = 2 << 20


SMALLEST_CLASS_BYTES = 4096


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """What a pool did, and the bytes that it holds now, padding included."""

    hits: int
    misses: int
    lent_bytes: int
    free_bytes: int

    @property
    def held_bytes(self) -> int:
        """All bytes, in use or idle."""
        return self.lent_bytes + self.free_bytes


def size_class(nbytes: int, *, classes: int = 4, alignment: int = 1) -> int:
    """The bytes of a buffer that can hold ``nbytes``, in whole units of the alignment.

    There are ``classes`` sizes (a power of two) between a power of two and the next.

    >>> size_class(9000), size_class(9000, classes=8), size_class(1)
    (10240, 9216, 4096)
    """
    wanted = max(nbytes, SMALLEST_CLASS_BYTES)
    step = max(1 << ((wanted - 1).bit_length() - classes.bit_length()), alignment)
    return -(-wanted // step) * step


@dataclass(eq=False, slots=True)
class _Block:
    """One piece of memory. It does not refer to the array that owns the memory, so that dropping all views of a
    lent buffer frees it."""

    capacity: int  # bytes of the aligned part
    lead: int  # bytes before the aligned part
    footprint: int  # bytes of all of it
    discharge: finalize[..., Bytes] | None = None  # runs once: when called, or when the memory dies


class MemoryArena:
    """Lends buffers of bytes whose address is aligned, to many threads at once.

    Strategies: ``"arena"`` keeps what is put back for the next borrower; ``"mapping"`` does the same with memory
    mapped straight from the system, on huge pages where it has them, which goes back to the system when trimmed;
    ``"heap"`` allocates each time and keeps nothing.

    With a budget, all that the arena holds is charged to it, and idle buffers are freed when someone waits for
    memory. The arena itself never waits: a request that would make it hold more than ``limit_bytes`` (by default
    the budget's limit) is a MemoryBudgetError. Reserve from that budget before borrowing, not while holding a
    buffer, which the reservation might wait for. A buffer that is dropped without being put back is freed.

    >>> arena = MemoryArena()
    >>> with arena.borrow(100_000) as buffer:
    ...     buffer.nbytes, buffer.ctypes.data % 64
    (100000, 0)
    >>> with arena.borrow(99_000) as buffer:
    ...     arena.statistics().hits
    1
    """

    def __init__(
        self,
        strategy: Strategy = "arena",
        *,
        alignment: int = 64,
        limit_bytes: int | str | None = None,
        budget: Budget | None = None,
    ) -> None:
        if strategy not in get_args(Strategy):
            raise UsageError(f"unknown arena strategy {strategy!r}; expected one of {', '.join(get_args(Strategy))}")
        if alignment < 1 or alignment & (alignment - 1):
            raise UsageError(f"an alignment of {alignment} bytes is not possible; expected a power of two")
        self._strategy: Strategy = strategy
        self._alignment = alignment
        self._limit_bytes = None if limit_bytes is None else parse_bytes(limit_bytes)
        self._budget = budget
        mapped_alignment = page_bytes() if strategy == "mapping" else 1
        self._padding = 0 if alignment <= mapped_alignment else alignment
        self._free: dict[int, list[tuple[Bytes, _Block]]] = {}  # memory and its block, by capacity
        self._lent: dict[int, _Block] = {}  # by the identity of the array that owns the memory
        self._hits = 0
        self._misses = 0
        self._free_bytes = 0
        self._held_bytes = 0
        # Re-entered when a collection inside the lock finds a dropped buffer. The budget is never called inside
        # it: the budget's own lock may be what such a collection happens in.
        self._lock = threading.RLock()
        if budget is not None:
            budget.register(self)

    def get(self, nbytes: int) -> Bytes:
        """A buffer of exactly nbytes, with whatever contents its memory last had."""
        if nbytes < 0:
            raise UsageError(f"a buffer of {nbytes} bytes was asked for; expected zero or more")
        capacity = self._capacity_for(nbytes)
        with self._lock:
            pooled = self._free.get(capacity)
            if pooled:
                owner, block = pooled.pop()
                self._hits += 1
                self._free_bytes -= block.footprint
                self._lent[id(owner)] = block
                return owner[block.lead : block.lead + nbytes]
            self._misses += 1
        owner, block = self._allocate(capacity)
        return owner[block.lead : block.lead + nbytes]

    def put(self, buffer: Bytes) -> None:
        """Take a buffer, or any view of it, back; the caller must not use it any more."""
        owner = buffer.base
        with self._lock:
            block = self._lent.pop(id(owner), None)
            if block is None or not isinstance(owner, np.ndarray):
                raise UsageError(
                    f"a buffer of {buffer.nbytes} bytes was put into an arena that did not lend it, or put twice"
                )
            if self._strategy != "heap" and not (self._budget is not None and self._budget.has_waiters):
                self._free.setdefault(block.capacity, []).append((owner, block))
                self._free_bytes += block.footprint
                return
        _discharge(block)

    @contextmanager
    def borrow(self, nbytes: int) -> Iterator[Bytes]:
        """A buffer for the length of a ``with`` block."""
        buffer = self.get(nbytes)
        try:
            yield buffer
        finally:
            self.put(buffer)

    def trim(self) -> int:
        """Free all buffers that nobody has borrowed, and return how many bytes that was.

        They are off the arena's books at once: another thread that needs memory does not wait until all are freed.
        """
        with self._lock:
            idle = [block for pooled in self._free.values() for _, block in pooled]
            freed_bytes, self._free_bytes = self._free_bytes, 0
            self._held_bytes -= freed_bytes
            freed, self._free = self._free, {}
        for block in idle:
            if block.discharge is not None:
                block.discharge.detach()
        freed.clear()
        if self._budget is not None:
            self._budget.release(freed_bytes)
        return freed_bytes

    def statistics(self) -> PoolStatistics:
        """Counts since the arena was made, and the bytes it holds now."""
        with self._lock:
            lent_bytes = self._held_bytes - self._free_bytes
            return PoolStatistics(self._hits, self._misses, lent_bytes, self._free_bytes)

    def __enter__(self) -> MemoryArena:
        return self

    def __exit__(
        self, error_class: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.trim()

    def _capacity_for(self, nbytes: int) -> int:
        return nbytes if self._strategy == "heap" else size_class(nbytes, alignment=self._alignment)

    def _allocate(self, capacity: int) -> tuple[Bytes, _Block]:
        footprint = capacity + self._padding
        if self._strategy == "mapping":
            footprint = _round_up(footprint, page_bytes())
        self._count_in(footprint)
        try:
            owner = _map_anonymous(footprint) if self._strategy == "mapping" else np.empty(footprint, np.uint8)
        except BaseException:
            with self._lock:
                self._held_bytes -= footprint
            raise
        if self._budget is not None:
            self._budget.charge(footprint)
        block = _Block(capacity, -owner.ctypes.data % self._alignment, footprint)
        block.discharge = finalize(owner, _count_out, ref(self), self._budget, id(owner), footprint)
        block.discharge.atexit = False
        with self._lock:
            self._lent[id(owner)] = block
        return owner, block

    def _count_in(self, footprint: int) -> None:
        """Count a block that is about to be allocated, after freeing idle ones if it would not fit else."""
        if self._fits(footprint):
            return
        self.trim()
        if not self._fits(footprint):
            raise MemoryBudgetError(
                f"a buffer of {format_bytes(footprint)} does not fit into an arena that holds "
                f"{format_bytes(self._held_bytes)}; its limit is {format_bytes(self._limit() or 0)}"
            )

    def _fits(self, footprint: int) -> bool:
        limit_bytes = self._limit()
        with self._lock:
            fits = limit_bytes is None or self._held_bytes + footprint <= limit_bytes
            if fits:
                self._held_bytes += footprint
            return fits

    def _limit(self) -> int | None:
        if self._limit_bytes is None and self._budget is not None:
            return self._budget.limit_bytes
        return self._limit_bytes


def _count_out(arena_ref: ref[MemoryArena], budget: Budget | None, owner_id: int, footprint: int) -> None:
    """Take a block off the books of its arena, which may be gone already, and of the budget."""
    arena = arena_ref()
    if arena is not None:
        with arena._lock:
            arena._lent.pop(owner_id, None)
            arena._held_bytes -= footprint
    if budget is not None:
        budget.release(footprint)


def _discharge(block: _Block) -> None:
    if block.discharge is not None:
        block.discharge()


def _map_anonymous(nbytes: int) -> Bytes:
    """Zeroed memory straight from the system; it goes back when the array dies."""
    mapping = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANON)
    if nbytes >= _HUGE_PAGE_BYTES:
        PinnedMapping(mapping).huge_pages()
    return np.frombuffer(mapping, np.uint8)


def _round_up(nbytes: int, power_of_two: int) -> int:
    return (nbytes + power_of_two - 1) & -power_of_two
