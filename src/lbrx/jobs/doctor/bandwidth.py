"""The memory bandwidth of Apple's chips, as Apple states it."""

from __future__ import annotations

BANDWIDTHS: dict[str, dict[int, int]] = {
    "Apple M1": {0: 68},
    "Apple M1 Pro": {0: 200},
    "Apple M1 Max": {0: 400},
    "Apple M1 Ultra": {0: 800},
    "Apple M2": {0: 100},
    "Apple M2 Pro": {0: 200},
    "Apple M2 Max": {0: 400},
    "Apple M2 Ultra": {0: 800},
    "Apple M3": {0: 100},
    "Apple M3 Pro": {0: 150},
    "Apple M3 Max": {30: 300, 40: 400},
    "Apple M3 Ultra": {0: 819},
    "Apple M4": {0: 120},
    "Apple M4 Pro": {0: 273},
    "Apple M4 Max": {32: 410, 40: 546},
    "Apple M5": {0: 153},
}
"""Gigabytes per second by the name of the GPU, then by its number of cores; 0 is any number."""


def stated_bandwidth(name: str, cores: int) -> int | None:
    """Gigabytes per second of a chip, or None if it is not in the table.

    >>> stated_bandwidth("Apple M4 Max", 32), stated_bandwidth("Apple M1", 7), stated_bandwidth("Apple M9", 8)
    (410, 68, None)
    """
    by_cores = BANDWIDTHS.get(name, {})
    return by_cores.get(cores, by_cores.get(0))
