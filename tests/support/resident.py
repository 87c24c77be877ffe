"""Physical memory of the test process."""

from __future__ import annotations

import psutil


def resident_bytes() -> int:
    """Bytes in physical memory, mapped files included."""
    return int(psutil.Process().memory_info().rss)
