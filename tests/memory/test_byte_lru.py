"""The cache limited by bytes: order of eviction, one computation per value, threads."""

from __future__ import annotations

import threading
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lbrx.errors import UsageError
from lbrx.memory import ByteLRU

TIMEOUT_SECONDS = 30


def test_least_recently_used_goes_first() -> None:
    cache: ByteLRU[str, bytes] = ByteLRU(10)
    cache.put("a", bytes(4))
    cache.put("b", bytes(4))
    assert cache.get("a") == bytes(4)
    cache.put("c", bytes(3))
    assert ("a" in cache, "b" in cache, "c" in cache) == (True, False, True)
    statistics = cache.statistics()
    assert (statistics.entries, statistics.held_bytes, statistics.evictions) == (2, 7, 1)


def test_replacing_counts_once() -> None:
    cache: ByteLRU[str, bytes] = ByteLRU("1KiB")
    cache.put("a", bytes(1000))
    cache.put("a", bytes(500))
    assert (len(cache), cache.statistics().held_bytes, cache.statistics().evictions) == (1, 500, 0)


def test_a_value_over_the_limit_is_handed_out_but_not_kept() -> None:
    cache: ByteLRU[str, np.ndarray[tuple[int], np.dtype[np.float32]]] = ByteLRU(limit_bytes=100)
    cache.put("small", np.zeros(10, np.float32))
    large = cache.get_or_create("large", lambda: np.ones(26, np.float32))
    assert large.nbytes == 104
    assert "large" not in cache
    assert "small" in cache
    cache.put("small", np.zeros(26, np.float32))
    assert (len(cache), cache.statistics().held_bytes) == (0, 0)


def test_sizes_can_be_told() -> None:
    cache: ByteLRU[int, int] = ByteLRU(100, size_of=lambda value: value)
    cache.put(1, 60)
    cache.put(2, 50)
    assert (cache.get(1), cache.get(2)) == (None, 50)


def test_a_missing_value_is_computed_once() -> None:
    cache: ByteLRU[str, bytes] = ByteLRU(100)
    may_finish = threading.Event()
    started: list[int] = []
    results: list[bytes] = []

    def factory() -> bytes:
        started.append(threading.get_ident())
        assert may_finish.wait(TIMEOUT_SECONDS)
        return b"value"

    threads = [
        threading.Thread(target=lambda: results.append(cache.get_or_create("key", factory)), daemon=True)
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    while cache.statistics().misses < 6:
        may_finish.wait(0.001)
    may_finish.set()
    for thread in threads:
        thread.join(TIMEOUT_SECONDS)
    assert results == [b"value"] * 6
    assert len({id(result) for result in results}) == 1
    assert len(started) == 1


def test_different_keys_are_computed_at_the_same_time() -> None:
    cache: ByteLRU[int, bytes] = ByteLRU(100)
    both_inside = threading.Barrier(2, timeout=TIMEOUT_SECONDS)

    def factory() -> bytes:
        both_inside.wait()
        return b"value"

    threads = [threading.Thread(target=cache.get_or_create, args=(key, factory), daemon=True) for key in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_SECONDS)
    assert len(cache) == 2


def test_a_failed_factory_fails_its_own_thread_only() -> None:
    cache: ByteLRU[str, bytes] = ByteLRU(100)
    is_waiting = threading.Event()
    results: list[bytes] = []

    def fail() -> bytes:
        assert is_waiting.wait(TIMEOUT_SECONDS)
        while cache.statistics().misses < 2:
            is_waiting.wait(0)
        raise ZeroDivisionError

    def second() -> None:
        is_waiting.set()
        results.append(cache.get_or_create("key", lambda: b"second"))

    thread = threading.Thread(target=second, daemon=True)

    def start_and_fail() -> bytes:
        thread.start()
        return fail()

    with pytest.raises(ZeroDivisionError):
        cache.get_or_create("key", start_and_fail)
    thread.join(TIMEOUT_SECONDS)
    assert results == [b"second"]
    assert cache.get("key") == b"second"


def test_a_factory_may_use_other_keys_but_not_its_own() -> None:
    cache: ByteLRU[str, bytes] = ByteLRU(100)
    assert cache.get_or_create("a", lambda: cache.get_or_create("b", lambda: b"b") + b"a") == b"ba"
    with pytest.raises(UsageError, match="the factory of cache entry 'c' asks for that same entry"):
        cache.get_or_create("c", lambda: cache.get_or_create("c", lambda: b"c"))
    assert cache.get_or_create("c", lambda: b"c") == b"c"


def test_what_is_being_computed_can_be_replaced() -> None:
    cache: ByteLRU[str, bytes] = ByteLRU(100)

    def replaced() -> bytes:
        cache.put("a", b"new")
        return b"old"

    assert cache.get_or_create("a", replaced) == b"old"
    assert cache.get("a") == b"new"


@settings(deadline=None)
@given(
    limit_bytes=st.integers(0, 40),
    operations=st.lists(st.tuples(st.booleans(), st.integers(0, 6), st.integers(0, 20))),
)
def test_behaves_as_its_plain_model(limit_bytes: int, operations: list[tuple[bool, int, int]]) -> None:
    cache: ByteLRU[int, bytes] = ByteLRU(limit_bytes)
    model: OrderedDict[int, int] = OrderedDict()
    for is_put, key, nbytes in operations:
        if is_put:
            cache.put(key, bytes(nbytes))
            model.pop(key, None)
            if nbytes <= limit_bytes:
                model[key] = nbytes
                while sum(model.values()) > limit_bytes:
                    model.popitem(last=False)
        else:
            value = cache.get(key)
            assert (None if value is None else len(value)) == model.get(key)
            if key in model:
                model.move_to_end(key)
        assert list(cache._entries) == list(model)
        assert cache.statistics().held_bytes == sum(model.values())


def test_values_that_are_dropped_are_freed_without_the_lock() -> None:
    cache: ByteLRU[str, object] = ByteLRU(10)
    waited: list[bool] = []

    class Value:
        nbytes = 6

        def __del__(self) -> None:
            other = threading.Thread(target=cache.statistics, daemon=True)
            other.start()
            other.join(TIMEOUT_SECONDS)
            waited.append(other.is_alive())

    cache.put("a", Value())
    cache.put("a", Value())  # in place of the first
    cache.put("b", Value())  # there is no room for both
    assert waited == [False, False]
