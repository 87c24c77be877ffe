"""What histogram and collect sinks of a pass bring back from a device (see lbrx.engine.kth)."""

from __future__ import annotations

import numpy as np

from lbrx.devices.metal.driver import Bytes
from lbrx.engine.block_sizes import BINS
from lbrx.engine.destination import CollectState, HistogramState

HISTOGRAM_BYTES = 4 * BINS
COLLECT_COUNT_BYTES = 8  # how many were collected, how many are above
COLLECTED_BYTES = 16  # key and index of an element, each a long


def collect_capacity(state: CollectState, elements: int) -> int:
    """How many elements a chunk can bring back: more than the limit are never looked at."""
    return min(state.limit, elements)


def add_counts(state: HistogramState, counts: Bytes) -> None:
    """Add what a chunk counted.

    >>> state = HistogramState(0, 0, np.zeros(BINS, np.int64))
    >>> add_counts(state, np.ones(BINS, np.uint32).view(np.uint8))
    >>> int(state.counts.sum()) == BINS
    True
    """
    state.counts += counts.view(np.uint32)


def add_collected(state: CollectState, counts: Bytes, keys: Bytes, indices: Bytes) -> int:
    """Add what a chunk collected, sorted by index because a GPU collects in any order; returns how many."""
    count, above = (int(each) for each in counts.view(np.uint32))
    collected = indices.view(np.int64)[:count]
    order = np.argsort(collected)
    state.add(count, above, keys.view(np.int64)[order], collected[order])
    return count
