"""What went to and from a device: counted, so that tests and `lbrx doctor` can tell a copy from a mapping."""

from __future__ import annotations

import threading
from dataclasses import field, fields
from weakref import WeakKeyDictionary

from lbrx.base.fast_dataclass import dataclass
from lbrx.devices.metal.context import MetalContext


@dataclass(slots=True)
class Transfers:
    """Bytes and dispatches of one device since the counts were made or reset.

    ``copied_bytes`` went into buffers, ``wrapped_bytes`` were used where they are mapped, ``returned_bytes`` were taken
    out of buffers. ``read_bytes`` and ``written_bytes`` are what the kernels of fused passes moved.

    >>> counts = Transfers()
    >>> counts.add(copied_bytes=10, dispatches=1)
    >>> counts.copied_bytes, counts.dispatches
    (10, 1)
    """

    copied_bytes: int = 0
    wrapped_bytes: int = 0
    returned_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    dispatches: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, **amounts: int) -> None:
        """Count more; safe from many threads."""
        with self._lock:
            for name, amount in amounts.items():
                setattr(self, name, getattr(self, name) + amount)

    def reset(self) -> None:
        """Begin at zero."""
        with self._lock:
            for each in fields(self):
                if not each.name.startswith("_"):
                    setattr(self, each.name, 0)


_counts: WeakKeyDictionary[MetalContext, Transfers] = WeakKeyDictionary()
_lock = threading.Lock()


def transfers(context: MetalContext) -> Transfers:
    """The counts of a device."""
    with _lock:
        return _counts.setdefault(context, Transfers())
