"""What the sinks of a pass write to, whichever device runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

import numpy as np
import numpy.typing as npt

from lbrx.base.fast_dataclass import dataclass
from lbrx.engine.destination import Destination
from lbrx.tensors.coded import Encoding
from lbrx.tensors.dtype import DTYPES
from lbrx.tensors.storage import Bytes

Ints = npt.NDArray[np.int64]


@dataclass(slots=True)
class HistogramState:
    """What a histogram sink counts: keys by ``(key >> shift) - first``."""

    shift: int
    first: int
    counts: Ints


@dataclass(slots=True)
class CollectState:
    """What a collect sink keeps: keys within [low, high] with their indices, up to a limit; how many are above."""

    low: int
    high: int
    limit: int
    keys: list[Ints] = field(default_factory=list)
    indices: list[Ints] = field(default_factory=list)
    collected: int = 0
    above: int = 0
    keeps_indices: bool = True
    borrow: Callable[[int], Bytes] | None = None  # where copies lie: memory that was in use before costs no faults

    def add(self, collected: int, above: int, keys: Ints, indices: Ints) -> None:
        """What a chunk has: the first ``collected`` of the arrays, which may be used again afterwards."""
        self.collected += collected
        self.above += above
        if self.collected <= self.limit:
            self.keys.append(self._copied(keys[:collected]))
            if self.keeps_indices:
                self.indices.append(self._copied(indices[:collected]))

    def _copied(self, numbers: Ints) -> Ints:
        if self.borrow is None:
            return numbers.copy()
        copy = self.borrow(numbers.nbytes).view(np.int64)
        copy[:] = numbers
        return copy


@dataclass(frozen=True, slots=True)
class EncodeTarget:
    """Where the blocks of stored f32 values go: a destination of bytes for each part of the codec, None if unwanted.

    ``start`` is the element of the encoding at which the values begin; rows are never cut.
    """

    encoding: Encoding
    parts: list[Destination | None]
    start: int = 0
    dtype = DTYPES["f32"]


SinkTarget = Destination | HistogramState | CollectState | None
