"""The options of attention, the same on every device."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np

from lbrx.base.fast_dataclass import dataclass
from lbrx.engine.arrays import Floats
from lbrx.errors import ShapeError, UsageError
from lbrx.tensors.shape import Shape

DTYPE_NAMES = {np.dtype(np.float32): "f32", np.dtype(np.float16): "f16", np.dtype(ml_dtypes.bfloat16): "bf16"}
"""The types of queries, keys and values."""


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """See `lbrx.ops.attention`."""

    scale: float | None = None
    causal: bool = True
    window: int | None = None
    softcap: float | None = None
    offset: int = 0
    chunk: int | None = None
    sinks: Floats | None = None

    def check(self, q: Shape, k: Shape, v: Shape) -> None:
        """Raise unless the options are valid and the shapes of queries, keys and values fit."""
        if any(len(shape) != 3 for shape in (q, k, v)) or k[:2] != v[:2] or q[2] != k[2]:
            raise ShapeError(
                f"attention: queries {q}, keys {k} and values {v} do not fit; "
                "expected [heads, n, d], [kv_heads, m, d] and [kv_heads, m, any]"
            )
        if k[0] == 0 or q[0] % k[0]:
            raise ShapeError(f"attention: {q[0]} heads of queries cannot share {k[0]} heads of keys")
        if self.window is not None and self.window < 1:
            raise UsageError(f"attention: a window of {self.window} positions makes no sense; expected at least 1")
        if self.softcap is not None and not self.softcap > 0:
            raise UsageError(f"attention: a soft cap of {self.softcap} makes no sense; expected a number above 0")
        if self.chunk is not None and (self.chunk < 1 or self.window is not None):
            raise UsageError(f"attention: a chunk of {self.chunk} positions makes no sense; expected 1 or more")
        if self.sinks is not None and (self.sinks.shape != q[:1] or self.sinks.dtype != np.float32):
            raise ShapeError(
                f"attention: sinks of shape {self.sinks.shape} in {self.sinks.dtype}; "
                f"expected one in f32 for each of {q[0]} heads"
            )
        if self.offset < 0:
            raise UsageError(f"attention: an offset of {self.offset} makes no sense; expected 0 or more")

    @property
    def is_plain(self) -> bool:
        """Whether there are no chunks and no sinks, which only the CPU computes."""
        return self.chunk is None and self.sinks is None

    def scale_of(self, head_size: int) -> float:
        """What scores are multiplied by."""
        return 1 / math.sqrt(max(head_size, 1)) if self.scale is None else self.scale
