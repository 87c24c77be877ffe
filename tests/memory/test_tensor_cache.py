"""The cache of tensors: what is worth keeping, what goes first, and the budget."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from lbrx.errors import UsageError
from lbrx.memory import Budget, ByteLRU, TensorCache

MIB = 1 << 20


def use(cache: TensorCache, key: str, nbytes: int, share: float = 1.0) -> bool:
    """Use a tensor; whether it was kept then."""
    return cache.get_or_create(key, nbytes, share, lambda: bytearray(nbytes)) is not None


def test_the_second_use_keeps_a_tensor() -> None:
    cache = TensorCache(100, Budget(MIB))
    assert [use(cache, "a", 60) for _ in range(3)] == [False, True, True]
    assert (cache.statistics().entries, cache.statistics().held_bytes) == (1, 60)
    assert not any(use(cache, "b", 60, share=0.25) for _ in range(4))  # one use in all
    assert not any(use(cache, "large", 101) for _ in range(5))


def test_a_millionth_may_be_missing_from_a_whole_use() -> None:
    cache = TensorCache(100, Budget(MIB))
    assert [use(cache, "rounded", 30, share=1 - 1e-6) for _ in range(2)] == [False, True]
    assert [use(cache, "part", 30, share=1 - 1e-5) for _ in range(3)] == [False, False, True]


def test_the_least_recently_used_goes_for_one_that_is_used_more() -> None:
    cache = TensorCache(100, Budget(MIB))
    for key in ("a", "b"):
        assert [use(cache, key, 50) for _ in range(2)] == [False, True]
    use(cache, "a", 50)  # "b" is the least recently used now
    assert [use(cache, "c", 50) for _ in range(3)] == [False, False, False]  # not used more often than "b"
    assert use(cache, "c", 50)
    assert (cache.statistics().evictions, cache.statistics().held_bytes) == (1, 100)
    assert use(cache, "a", 50)
    assert not use(cache, "b", 50)


def test_reading_more_than_the_cache_holds_again_and_again_keeps_a_part() -> None:
    cache = TensorCache(100, Budget(MIB))
    kept = [[use(cache, f"tensor {number}", 30) for number in range(8)] for _ in range(6)]
    assert [sum(each) for each in kept] == [0, 3, 3, 3, 3, 3]
    assert cache.statistics().evictions == 0


def test_old_uses_count_less() -> None:
    cache = TensorCache(100, Budget(MIB))
    for _ in range(1000):
        use(cache, "old", 100)
    tries = 0
    while not use(cache, "new", 100):
        tries += 1
        assert tries < 100
    assert not use(cache, "old", 100)


def test_kept_bytes_are_charged_to_the_budget() -> None:
    account = Budget(100)
    cache = TensorCache(MIB, account)
    assert [use(cache, "a", 60) for _ in range(2)] == [False, True]
    assert account.used_bytes == 60
    assert not any(use(cache, "b", 50) for _ in range(3))  # it would replace "a", which is used as often
    assert use(cache, "b", 50)
    assert (account.used_bytes, cache.statistics().evictions) == (50, 1)
    with account.reserve(50, "a tile"):
        assert account.used_bytes == 100
        assert not any(use(cache, "c", 60) for _ in range(9))
    with account.reserve(80, "a large tile"):  # waits, so the cache drops everything
        assert (account.used_bytes, cache.statistics().held_bytes) == (80, 0)
    assert account.used_bytes == 0
    assert use(cache, "b", 50)
    cache.clear()
    assert (account.used_bytes, use(cache, "b", 50)) == (0, False)
    assert [use(cache, "b", 50), account.used_bytes] == [True, 50]
    del cache
    assert account.used_bytes == 0


def test_other_work_takes_the_memory_of_the_cache() -> None:
    account = Budget(100)
    cache = TensorCache(MIB, account)
    assert [use(cache, "a", 60) for _ in range(2)] == [False, True]
    account.charge(40)
    assert (account.used_bytes, cache.statistics().held_bytes) == (100, 60)
    account.charge(1)  # scratch memory never waits
    assert (account.used_bytes, cache.statistics().held_bytes) == (41, 0)
    assert not use(cache, "a", 60)
    account.release(41)
    assert use(cache, "a", 60)


def test_it_shows_what_it_holds() -> None:
    cache = TensorCache("1KiB", Budget(MIB))
    for _ in range(3):
        use(cache, "a", 512)
    assert repr(cache) == "TensorCache(512 B of 1 KiB in 1 tensors, 1 hits, 3 misses)"


def test_the_limit_is_text_or_a_number() -> None:
    assert TensorCache("1MiB").limit_bytes == MIB
    with pytest.raises(UsageError, match="not a number of bytes"):
        TensorCache("much")


def test_a_cache_with_a_budget_replaces_and_drops_what_it_charged() -> None:
    account = Budget(100)
    cache: ByteLRU[str, bytes] = ByteLRU(1000, budget=account)
    for nbytes, held in ((40, 40), (90, 90), (101, 0), (70, 70)):
        cache.put("a", bytes(nbytes))
        assert (account.used_bytes, cache.statistics().held_bytes, cache.room_bytes()) == (held, held, 100)
    cache.put("b", bytes(30))
    assert (account.used_bytes, len(cache)) == (100, 2)
    assert cache.oldest(71) == ["a", "b"]
    assert cache.oldest(70) == ["a"]
    assert cache.oldest(0) == []
    assert (cache.trim(), account.used_bytes, len(cache)) == (100, 0, 0)


def test_many_threads_create_a_tensor_once() -> None:
    account = Budget(MIB)
    cache = TensorCache(MIB, account)
    created: list[str] = []
    barrier = threading.Barrier(8)

    def maker(key: str) -> Callable[[], bytes]:
        def make() -> bytes:
            created.append(key)
            return bytes(1000)

        return make

    def work() -> None:
        barrier.wait()
        for number in range(200):
            key = str(number % 10)
            cache.get_or_create(key, 1000, 1.0, maker(key))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(created) == [str(number) for number in range(10)]
    assert account.used_bytes == cache.statistics().held_bytes == 10_000
