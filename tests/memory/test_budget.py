"""The byte budget: limits, waiting, nesting, and the process-wide account."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lbrx.memory
from lbrx.errors import MemoryBudgetError, UsageError
from lbrx.memory import Budget

TIMEOUT_SECONDS = 30
module = importlib.import_module("lbrx.memory.budget")


class Waiter:
    """A thread that reserves, says so, and holds on until it is told to let go."""

    def __init__(self, account: Budget, nbytes: int) -> None:
        self.granted = threading.Event()
        self.let_go = threading.Event()
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(account, nbytes), daemon=True)
        self._thread.start()

    def _run(self, account: Budget, nbytes: int) -> None:
        try:
            with account.reserve(nbytes, "a waiter"):
                self.granted.set()
                assert self.let_go.wait(TIMEOUT_SECONDS)
        except MemoryBudgetError as error:
            self.error = error

    def finish(self) -> None:
        self.let_go.set()
        self._thread.join(TIMEOUT_SECONDS)
        assert not self._thread.is_alive()


def wait_until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(TIMEOUT_SECONDS * 1000):
        if condition():
            return
        pause.wait(0.001)
    raise AssertionError("nothing happened in time")


class TestReserve:
    def test_counts(self) -> None:
        account = Budget(100)
        with account.reserve(60, "a"), account.reserve(30, "b"):
            assert account.used_bytes == 90
        assert (account.used_bytes, account.peak_bytes) == (0, 90)

    def test_too_large_is_refused_at_once(self) -> None:
        account = Budget("1KiB")
        message = r"^a tile needs 1.5 KiB of memory, but the limit is 1 KiB; set LBRX_MEMORY or --memory to"
        with pytest.raises(MemoryBudgetError, match=message), account.reserve(1536, "a tile"):
            pytest.fail("granted")
        assert account.used_bytes == 0

    def test_negative_is_refused(self) -> None:
        with pytest.raises(UsageError, match="reserves -1 bytes"), Budget(10).reserve(-1, "a tile"):
            pytest.fail("granted")

    def test_released_when_the_work_fails(self) -> None:
        account = Budget(100)
        with pytest.raises(ZeroDivisionError), account.reserve(100, "a"):
            raise ZeroDivisionError
        assert account.used_bytes == 0

    def test_waits_for_another_thread(self) -> None:
        account = Budget(100)
        first = Waiter(account, 70)
        assert first.granted.wait(TIMEOUT_SECONDS)
        second = Waiter(account, 40)
        wait_until(lambda: account.has_waiters)
        assert not second.granted.is_set()
        assert account.used_bytes == 70
        first.finish()
        assert second.granted.wait(TIMEOUT_SECONDS)
        assert account.used_bytes == 40
        second.finish()
        assert account.peak_bytes == 70

    def test_nested_reservations_never_wait(self) -> None:
        account = Budget(100)
        other = Waiter(account, 50)
        assert other.granted.wait(TIMEOUT_SECONDS)
        with account.reserve(50, "outer"):
            with account.reserve(40, "inner"):
                assert account.used_bytes == 140
            with pytest.raises(MemoryBudgetError, match="inner needs 101 B"), account.reserve(51, "inner"):
                pytest.fail("more than the limit for one thread")
        other.finish()
        assert (account.used_bytes, account.peak_bytes) == (0, 140)

    def test_empty_outer_reservation_still_counts_as_holding(self) -> None:
        account = Budget(100)
        with account.reserve(0, "outer"):
            with account.reserve(10, "inner"):
                pass
            assert account.used_bytes == 0
        assert account._holdings == {}

    def test_raising_the_limit_wakes_waiters_and_lowering_it_refuses_them(self) -> None:
        account = Budget(100)
        holder = Waiter(account, 80)
        assert holder.granted.wait(TIMEOUT_SECONDS)
        waiter, hopeless = Waiter(account, 60), Waiter(account, 90)
        wait_until(lambda: account._waiters == 2)
        account.limit_bytes = 70
        hopeless.finish()
        assert "needs 90 B of memory, but the limit is 70 B" in str(hopeless.error)
        account.limit_bytes = 140
        assert waiter.granted.wait(TIMEOUT_SECONDS)
        waiter.finish()
        holder.finish()

    def test_idle_memory_is_trimmed_before_waiting(self) -> None:
        class Pool:
            def trim(self) -> int:
                account.release(60)
                return 60

        account = Budget(100)
        pool = Pool()
        account.register(pool)
        account.charge(60)
        with account.reserve(80, "a tile"):
            assert account.used_bytes == 80
        assert account.peak_bytes == 80

    @settings(deadline=None)
    @given(st.lists(st.lists(st.integers(0, 100), max_size=8), max_size=4))
    def test_many_threads_stay_within_the_limit(self, requests: list[list[int]]) -> None:
        account = Budget(100)

        def work(sizes: list[int]) -> None:
            for nbytes in sizes:
                with account.reserve(nbytes, "work"):
                    pass

        threads = [threading.Thread(target=work, args=(sizes,), daemon=True) for sizes in requests]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT_SECONDS)
        assert not any(thread.is_alive() for thread in threads)
        assert account.used_bytes == 0
        assert account.peak_bytes <= 100
        assert account.peak_bytes >= max((nbytes for sizes in requests for nbytes in sizes), default=0)

    @settings(deadline=None)
    @given(st.lists(st.integers(0, 10), min_size=1, max_size=10))
    def test_nested_sums(self, sizes: list[int]) -> None:
        account = Budget(100)
        with ExitStack() as stack:
            for nbytes in sizes:
                stack.enter_context(account.reserve(nbytes, "work"))
            assert account.used_bytes == account.peak_bytes == sum(sizes)
        assert account.used_bytes == 0


class TestProcessBudget:
    @pytest.fixture(autouse=True)
    def fresh(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "_process_budget", None)
        monkeypatch.delenv("LBRX_MEMORY", raising=False)

    def test_default_is_a_quarter_of_what_is_available(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "available_bytes", lambda: 8 << 30)
        assert lbrx.memory.budget().limit_bytes == 2 << 30

    def test_default_is_at_most_4_gib(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "available_bytes", lambda: 1 << 40)
        assert lbrx.memory.budget().limit_bytes == 4 << 30

    def test_environment_decides(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LBRX_MEMORY", "6GB")
        assert lbrx.memory.budget().limit_bytes == 6 * 10**9

    def test_set_budget_changes_the_one_account(self) -> None:
        account = lbrx.memory.set_budget("2MiB")
        assert account is lbrx.memory.budget()
        assert lbrx.memory.set_budget(500) is account
        assert account.limit_bytes == 500

    def test_zero_lets_nothing_run(self) -> None:
        with pytest.raises(UsageError, match="a memory limit of '0' lets nothing run"):
            lbrx.memory.set_budget("0")
