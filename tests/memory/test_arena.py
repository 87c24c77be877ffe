"""Pooled buffers: size, alignment, reuse, accounting and threads."""

from __future__ import annotations

import gc
import sys
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lbrx.base.system import anonymous_bytes, page_bytes
from lbrx.errors import MemoryBudgetError, UsageError
from lbrx.memory import Budget, MemoryArena
from lbrx.memory.arena import Strategy

MIB = 1 << 20
STRATEGIES: list[Strategy] = ["arena", "heap", "mapping"]
every_strategy = pytest.mark.parametrize("strategy", STRATEGIES)


@every_strategy
@pytest.mark.parametrize("alignment", [1, 64, page_bytes(), 4 * page_bytes()])
@pytest.mark.parametrize("nbytes", [0, 1, 4096, 100_001, 3 * MIB])
def test_exact_size_and_alignment(strategy: Strategy, alignment: int, nbytes: int) -> None:
    arena = MemoryArena(strategy, alignment=alignment)
    first, second = arena.get(nbytes), arena.get(nbytes)
    for buffer in (first, second):
        assert (buffer.dtype.name, buffer.shape) == ("uint8", (nbytes,))
        assert nbytes == 0 or buffer.ctypes.data % alignment == 0
    first[:] = 1
    second[:] = 2
    assert (first == 1).all()


@pytest.mark.parametrize("strategy", ["arena", "mapping"])
def test_memory_is_used_again(strategy: Strategy) -> None:
    arena = MemoryArena(strategy)
    with arena.borrow(MIB) as buffer:
        address = buffer.ctypes.data
    with arena.borrow(MIB - 1000) as buffer:
        assert buffer.ctypes.data == address
        assert buffer.nbytes == MIB - 1000
    statistics = arena.statistics()
    assert (statistics.hits, statistics.misses) == (1, 1)
    assert statistics.lent_bytes == 0
    assert MIB <= statistics.free_bytes == statistics.held_bytes


def test_heap_keeps_nothing() -> None:
    arena = MemoryArena("heap")
    for _ in range(2):
        with arena.borrow(MIB):
            assert MIB <= arena.statistics().lent_bytes <= MIB + 64
    statistics = arena.statistics()
    assert (statistics.hits, statistics.misses, statistics.held_bytes) == (0, 2, 0)


@pytest.mark.parametrize("strategy", ["arena", "mapping"])
@settings(deadline=None)
@given(st.integers(4096, 1 << 24))
def test_a_class_wastes_at_most_a_quarter(strategy: Strategy, nbytes: int) -> None:
    arena = MemoryArena(strategy)
    buffer = arena.get(nbytes)
    assert nbytes <= arena.statistics().held_bytes <= nbytes * 5 / 4 + 64 + page_bytes()
    arena.put(buffer)


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param(
            "arena",
            marks=pytest.mark.skipif(sys.platform != "linux", reason="macOS keeps freed heap memory for a while"),
        ),
        "mapping",
    ],
)
def test_trim_gives_memory_back_to_the_system(strategy: Strategy) -> None:
    before = anonymous_bytes()
    with MemoryArena(strategy) as arena:
        with arena.borrow(64 * MIB) as buffer:
            buffer[:] = 1
        del buffer
        assert anonymous_bytes() - before > 48 * MIB
        assert arena.trim() >= 64 * MIB
        assert anonymous_bytes() - before < 16 * MIB
        assert arena.statistics().held_bytes == 0
        assert arena.trim() == 0


def test_an_arena_keeps_nothing_after_its_block() -> None:
    with MemoryArena() as arena:
        with arena.borrow(MIB):
            pass
        assert arena.statistics().free_bytes >= MIB
    assert arena.statistics().held_bytes == 0


@every_strategy
def test_foreign_and_repeated_puts_are_refused(strategy: Strategy) -> None:
    arena, other = MemoryArena(strategy), MemoryArena(strategy)
    buffer = arena.get(5000)
    for wrong in (np.empty(5000, np.uint8), np.empty(5000, np.uint8)[10:], other.get(5000)):
        with pytest.raises(UsageError, match="did not lend it, or put twice"):
            arena.put(wrong)
    arena.put(buffer)
    with pytest.raises(UsageError, match=r"a buffer of 5000 bytes .* put twice"):
        arena.put(buffer)


def test_a_view_can_be_put_back() -> None:
    arena = MemoryArena()
    floats: NDArray[Any] = arena.get(4000).view(np.float32).reshape(10, 100)
    arena.put(floats)
    assert arena.statistics().lent_bytes == 0


@pytest.mark.parametrize("arguments", [{"strategy": "stack"}, {"alignment": 0}, {"alignment": 48}, {"alignment": -8}])
def test_arguments_are_checked(arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="expected"):
        MemoryArena(**arguments)
    with pytest.raises(UsageError, match="-1 bytes"):
        MemoryArena().get(-1)


def test_a_limit_as_text() -> None:
    arena = MemoryArena(limit_bytes="1MiB")
    with arena.borrow(900_000) as buffer:
        assert buffer.size == 900_000
        with pytest.raises(MemoryBudgetError, match="its limit is 1 MiB"):
            arena.get(900_000)
    with pytest.raises(UsageError, match="1 lemon"):
        MemoryArena(limit_bytes="1 lemon")


@every_strategy
def test_limit(strategy: Strategy) -> None:
    arena = MemoryArena(strategy, limit_bytes=4 * MIB)
    buffer = arena.get(2 * MIB)
    with pytest.raises(MemoryBudgetError, match=r"a buffer of 3 MiB .* holds 2 MiB; its limit is 4 MiB"):
        arena.get(3 * MIB)
    arena.put(buffer)
    assert arena.get(3 * MIB).nbytes == 3 * MIB  # the idle buffer made room for it


@every_strategy
def test_a_dropped_buffer_is_freed(strategy: Strategy) -> None:
    account = Budget("16MiB")
    arena = MemoryArena(strategy, budget=account)
    buffer = arena.get(MIB)
    cycle: list[object] = [buffer]
    cycle.append(cycle)
    assert account.used_bytes == arena.statistics().held_bytes >= MIB
    del buffer, cycle
    gc.collect()
    assert account.used_bytes == arena.statistics().held_bytes == 0
    assert arena._lent == {}


@every_strategy
def test_a_dropped_arena_is_discharged(strategy: Strategy) -> None:
    account = Budget("16MiB")
    arena = MemoryArena(strategy, budget=account)
    arena.put(arena.get(MIB))
    lent = arena.get(2 * MIB)
    del arena
    assert 2 * MIB <= account.used_bytes < 3 * MIB
    lent[:] = 1
    del lent
    assert account.used_bytes == 0


def test_idle_buffers_give_way_to_reservations() -> None:
    account = Budget("16MiB")
    arena = MemoryArena(budget=account)
    arena.put(arena.get(10 * MIB))
    with account.reserve(12 * MIB, "a tile"):
        assert account.used_bytes == 12 * MIB
    assert arena.statistics().held_bytes == 0


def test_a_buffer_put_back_while_someone_waits_is_freed() -> None:
    account = Budget("16MiB")
    arena = MemoryArena(budget=account)
    buffer = arena.get(10 * MIB)
    granted = threading.Event()

    def reserve() -> None:
        with account.reserve(12 * MIB, "a tile"):
            granted.set()

    waiter = threading.Thread(target=reserve, daemon=True)
    waiter.start()
    while not account.has_waiters:
        granted.wait(0.001)
    arena.put(buffer)
    assert granted.wait(30)
    waiter.join(30)
    assert arena.statistics().held_bytes == account.used_bytes == 0


def test_failed_allocation_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object) -> None:
        raise MemoryError

    account = Budget("16MiB")
    arena = MemoryArena(budget=account)
    with monkeypatch.context() as patch:
        patch.setattr(np, "empty", exhausted)
        with pytest.raises(MemoryError):
            arena.get(MIB)
    assert arena.statistics().held_bytes == account.used_bytes == 0


@every_strategy
@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 1 << 16)), max_size=60))
def test_any_sequence_keeps_buffers_apart(strategy: Strategy, operations: list[tuple[bool, int]]) -> None:
    account = Budget("1GiB")
    arena = MemoryArena(strategy, budget=account)
    lent: list[tuple[NDArray[np.uint8], int]] = []
    for number, (is_get, value) in enumerate(operations):
        if is_get or not lent:
            buffer = arena.get(value)
            buffer[:] = number % 251
            lent.append((buffer, number % 251))
        else:
            buffer, mark = lent.pop(value % len(lent))
            assert (buffer == mark).all()
            arena.put(buffer)
    assert all((buffer == mark).all() for buffer, mark in lent)
    statistics = arena.statistics()
    assert statistics.held_bytes == account.used_bytes
    assert statistics.lent_bytes >= sum(buffer.nbytes for buffer, _ in lent)
    assert statistics.free_bytes == arena.trim()


@every_strategy
def test_threads_never_share_a_buffer(strategy: Strategy) -> None:
    arena = MemoryArena(strategy)
    spoiled: list[int] = []

    def work(mark: int) -> None:
        for size in range(1, 300):
            with arena.borrow(size * 40) as buffer:
                buffer[:] = mark
                if not (buffer == mark).all():
                    spoiled.append(mark)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert spoiled == []
    statistics = arena.statistics()
    assert statistics.hits + statistics.misses == 4 * 299
    assert statistics.lent_bytes == 0


def test_threads_that_find_a_lower_limit_at_once_all_get_their_buffers() -> None:
    """One of them frees what is idle; the others must not be told that it is still there."""
    errors: list[MemoryBudgetError] = []

    def ask(arena: MemoryArena, start: threading.Barrier) -> None:
        start.wait()
        try:
            arena.put(arena.get(100_000))
        except MemoryBudgetError as error:
            errors.append(error)

    for _ in range(20):
        budget = Budget(64 << 20)
        arena, start = MemoryArena(budget=budget), threading.Barrier(4)
        for buffer in [arena.get(4096) for _ in range(4000)]:
            arena.put(buffer)
        budget.limit_bytes = 1 << 20
        threads = [threading.Thread(target=ask, args=(arena, start)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        assert budget.used_bytes == arena.statistics().held_bytes <= 1 << 20
