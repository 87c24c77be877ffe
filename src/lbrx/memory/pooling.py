"""Size classes and statistics that all pools of buffers share."""

from __future__ import annotations

from lbrx.base.fast_dataclass import dataclass

_SMALLEST_CLASS_BYTES = 4096


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """What a pool did, and the bytes that it holds now, padding included."""

    hits: int
    misses: int
    lent_bytes: int
    free_bytes: int

    @property
    def held_bytes(self) -> int:
        return self.lent_bytes + self.free_bytes


def size_class(nbytes: int, *, classes: int = 4, alignment: int = 1) -> int:
    """The bytes of a buffer that can hold ``nbytes``, in whole units of the alignment.

    There are ``classes`` sizes (a power of two) between a power of two and the next.

    >>> size_class(9000), size_class(9000, classes=8), size_class(1)
    (10240, 9216, 4096)
    """
    wanted = max(nbytes, _SMALLEST_CLASS_BYTES)
    step = max(1 << ((wanted - 1).bit_length() - classes.bit_length()), alignment)
    return -(-wanted // step) * step
