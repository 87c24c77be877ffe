"""Results in pooled memory: used again when nobody refers to them, never before."""

from __future__ import annotations

import numpy as np

import lbrx
from lbrx.memory.scratch import SMALLEST_POOLED_BYTES, ResultPool

MEBI = 1 << 20


def test_a_block_in_use_is_not_given_out_again() -> None:
    pool = ResultPool(64 * MEBI)
    first, second = pool.take(2 * MEBI), pool.take(2 * MEBI)
    assert not np.shares_memory(first, second)


def test_a_view_keeps_its_block() -> None:
    pool = ResultPool(64 * MEBI)
    view = pool.take(2 * MEBI).view(np.float32)[5:10].reshape(5, 1)
    assert not np.shares_memory(view, pool.take(2 * MEBI))


def test_what_is_known_stays_below_the_limit() -> None:
    pool = ResultPool(10 * MEBI)
    lent = [pool.take(3 * MEBI) for _ in range(8)]
    assert pool.known_bytes <= 10 * MEBI
    assert not any(np.shares_memory(lent[0], other) for other in lent[1:])
    assert pool.take(20 * MEBI).size == 20 * MEBI


def test_results_that_live_side_by_side_keep_their_values() -> None:
    x = lbrx.tensor(np.arange(MEBI, dtype=np.float32))
    results = [(x + number).numpy() for number in range(4)]
    assert [int(result[10]) for result in results] == [10, 11, 12, 13]


def test_small_results_are_not_pooled() -> None:
    pool = ResultPool(limit_bytes=1 << 30)
    assert pool.take(SMALLEST_POOLED_BYTES - 1).nbytes == SMALLEST_POOLED_BYTES - 1
    assert pool.known_bytes == 0
    pool.take(SMALLEST_POOLED_BYTES)
    assert pool.known_bytes >= SMALLEST_POOLED_BYTES
