"""BufferPool: size classes, reuse, limits, and buffers that are returned while the device works on them."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest

from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.driver import BufferBinding
from lbrx.devices.metal.driver.errors import MetalError
from lbrx.devices.metal.driver.pool import BufferPool
from lbrx.devices.metal.emulator.driver import EmulatedDriver
from lbrx.errors import MemoryBudgetError, UsageError
from support.metal_shaders import PREFIX, driver, needs_clang

pytestmark = needs_clang
KIB = 1024


class Work:
    """A submission that ends when the test says so."""

    gpu_seconds = (0.0, 0.0)

    def __init__(self) -> None:
        self.done = False
        self.waited = False

    def wait(self) -> None:
        self.done = self.waited = True


@pytest.mark.parametrize("nbytes", [0, 1, 4095, 4096, 4097, 5000, 100_000, 1_000_001])
def test_a_buffer_has_the_size_that_was_asked_for(nbytes: int) -> None:
    buffer = BufferPool(driver()).get_buffer(nbytes)
    assert buffer.nbytes == nbytes
    assert buffer.view().nbytes == nbytes
    assert max(nbytes, 4096) <= buffer.capacity_bytes <= max(nbytes * 5 / 4 + 1, 4096)
    assert buffer.view().ctypes.data % 16 == 0


def test_a_returned_buffer_is_lent_again_within_its_class() -> None:
    pool = BufferPool(driver())
    first = pool.get_buffer(10_000)
    pool.return_buffer(first)
    assert pool.get_buffer(9_500) is first
    assert first.nbytes == 9_500
    assert pool.get_buffer(9_500) is not first
    statistics = pool.statistics()
    assert (statistics.hits, statistics.misses) == (1, 2)
    assert statistics.lent_bytes == 2 * 10 * KIB
    assert statistics.free_bytes == 0


def test_after_the_first_step_the_pool_serves_every_request() -> None:
    pool = BufferPool(driver())
    sizes = [5_000 * k for k in range(1, 20)]
    for _ in range(20):
        lent = [pool.get_buffer(size) for size in sizes]
        for buffer in lent:
            pool.return_buffer(buffer)
    statistics = pool.statistics()
    assert statistics.misses == len(sizes)
    assert statistics.hits == 19 * len(sizes)


def test_new_contents_are_not_what_was_there() -> None:
    pool = BufferPool(driver())
    buffer = pool.get_buffer(4096)
    buffer.view()[:] = 7
    pool.return_buffer(buffer)
    assert np.isnan(pool.get_buffer(4096).view().view(np.float32)).all()


def test_a_buffer_is_returned_once_and_to_its_own_pool() -> None:
    pool, other = BufferPool(driver()), BufferPool(driver())
    buffer = pool.get_buffer(100)
    with pytest.raises(UsageError, match="did not lend it"):
        other.return_buffer(buffer)
    pool.return_buffer(buffer)
    with pytest.raises(UsageError, match="returned twice"):
        pool.return_buffer(buffer)


def test_a_negative_size_is_an_error() -> None:
    with pytest.raises(UsageError, match="-1 bytes"):
        BufferPool(driver()).get_buffer(-1)


def test_idle_buffers_are_freed_for_others_below_the_limit() -> None:
    pool = BufferPool(driver(), limit_bytes="64KiB")
    pool.return_buffer(pool.get_buffer(32 * KIB))
    pool.return_buffer(pool.get_buffer(16 * KIB))
    assert pool.statistics().free_bytes == 48 * KIB
    pool.get_buffer(40 * KIB)
    assert pool.statistics().held_bytes <= 64 * KIB
    assert pool.statistics().lent_bytes == 40 * KIB


def test_beyond_the_limit_is_an_error_that_says_what_to_do() -> None:
    pool = BufferPool(driver(), limit_bytes=64 * KIB)
    pool.get_buffer(40 * KIB)
    with pytest.raises(MemoryBudgetError, match="40 KiB of 64 KiB on emulated M1 are in use; use smaller"):
        pool.get_buffer(40 * KIB)


def test_more_than_the_largest_buffer_is_an_error() -> None:
    small = EmulatedDriver(info=replace(driver().info, max_buffer_bytes=1 << 20))
    with pytest.raises(MemoryBudgetError, match="the largest on emulated M1 is 1 MiB"):
        BufferPool(small).get_buffer((1 << 20) + 1)


def test_no_memory_at_all_is_an_error() -> None:
    huge = EmulatedDriver(info=replace(driver().info, max_buffer_bytes=1 << 62, working_set_bytes=1 << 62))
    with pytest.raises(MemoryBudgetError, match="there is no memory for a buffer of"):
        BufferPool(huge).get_buffer(1 << 60)


def test_trim_keeps_what_is_asked_and_what_is_in_flight() -> None:
    pool = BufferPool(driver())
    busy, *idle = (pool.get_buffer(8 * KIB) for _ in range(4))
    busy.last_use = Work()
    for buffer in (busy, *idle):
        pool.return_buffer(buffer)
    assert pool.trim(keep_bytes=24 * KIB) == 8 * KIB
    assert pool.trim() == 16 * KIB
    assert pool.statistics().free_bytes == 8 * KIB


def test_a_buffer_in_flight_is_not_lent_to_the_host() -> None:
    pool = BufferPool(driver())
    buffer, work = pool.get_buffer(8 * KIB), Work()
    buffer.last_use = work
    pool.return_buffer(buffer)
    other = pool.get_buffer(8 * KIB)
    assert other is not buffer
    work.done = True
    assert pool.get_buffer(8 * KIB) is buffer
    assert buffer.last_use is None


def test_a_buffer_in_flight_is_lent_to_the_device() -> None:
    pool = BufferPool(driver())
    buffer = pool.get_buffer(8 * KIB)
    buffer.last_use = Work()
    pool.return_buffer(buffer)
    assert pool.get_buffer(8 * KIB, host_access=False) is buffer


def test_at_the_limit_the_pool_waits_for_the_device() -> None:
    pool = BufferPool(driver(), limit_bytes=16 * KIB)
    buffer, work = pool.get_buffer(16 * KIB), Work()
    buffer.last_use = work
    pool.return_buffer(buffer)
    pool.get_buffer(12 * KIB)
    assert work.waited


def test_a_buffer_in_flight_cannot_be_released() -> None:
    buffer = driver().allocate(100)
    buffer.last_use = Work()
    with pytest.raises(MetalError, match="released while a kernel may still use it"):
        buffer.release()


def test_a_view_keeps_its_buffer_alive() -> None:
    view = driver().allocate(4096).view()
    view[:] = 3
    assert view.sum() == 3 * 4096


def test_buffers_returned_before_their_kernel_ran_are_safe() -> None:
    source = PREFIX + "kernel void add(device float* x, uint i [[thread_position_in_grid]]) { x[i] += 1; }"
    context = MetalContext(driver())
    add = context.pipeline(source, "add")
    results = []
    for step in range(50):
        temporary = context.buffer_from(np.full(1000, step, np.float32))
        context.dispatch(add, {0: BufferBinding(temporary)}, (1000,), (64,), grid_unit="threads")
        if step % 10 == 9:
            results.append(context.array(temporary, np.float32))
        context.return_buffer(temporary)
    assert [set(result) for result in results] == [{step + 1.0} for step in (9, 19, 29, 39, 49)]


def test_threads_share_a_pool() -> None:
    pool = BufferPool(driver())
    failures: list[int] = []

    def work(value: int) -> None:
        for _ in range(100):
            buffer = pool.get_buffer(5_000)
            buffer.view()[:] = value
            if not (buffer.view() == value).all():
                failures.append(value)
            pool.return_buffer(buffer)

    threads = [threading.Thread(target=work, args=(value,)) for value in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    statistics = pool.statistics()
    assert not failures
    assert statistics.hits + statistics.misses == 800
    assert statistics.misses <= 8
    assert statistics.lent_bytes == 0
