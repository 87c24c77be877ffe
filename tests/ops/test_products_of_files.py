"""Products with a few vectors over weights that cannot be mapped: they are read some rows at a time."""

from __future__ import annotations

import numpy as np
import pytest

import lbrx
from lbrx.ops.linear import linear
from lbrx.tensors.coded import Blocks
from lbrx.tensors.expr import Source
from lbrx.tensors.shape import Layout
from lbrx.tensors.storage import Bytes, ReadStorage, Storage

ROWS, COLUMNS = 4096, 512
MOST_READ_BYTES = 256 << 10


class _Counted(ReadStorage):
    """The bytes of another storage without its address; notes the largest read."""

    __slots__ = ("_inner", "largest_bytes", "nbytes")

    def __init__(self, inner: Storage) -> None:
        self._inner = inner
        self.nbytes = inner.nbytes
        self.largest_bytes = 0

    def read_into(self, offset: int, buffer: Bytes) -> None:
        self.largest_bytes = max(self.largest_bytes, buffer.size)
        self._inner.read_into(offset, buffer)


def _weight(type_name: str) -> tuple[lbrx.Tensor, _Counted, lbrx.Tensor]:
    """A weight in memory, and the same one in a storage without an address."""
    values = lbrx.normal((ROWS, COLUMNS), 1, "w")
    if type_name in ("bf16", "f16"):
        whole = values.to(type_name).realize()
        assert isinstance(whole.expr, Source)
        counted = _Counted(whole.expr.storage)
        return whole, counted, lbrx.Tensor(Source(counted, whole.dtype, Layout.contiguous(whole.shape)))
    whole = values.quantize(type_name).realize()
    assert isinstance(whole.expr, Blocks)
    counted = _Counted(whole.expr.storage)
    return whole, counted, lbrx.Tensor(Blocks(counted, type_name, whole.shape))


@pytest.mark.parametrize("type_name", ["bf16", "f16", "q8_0", "q4_0", "q4_k", "q5_0"])
@pytest.mark.parametrize("vectors", [1, 3])
def test_a_weight_is_never_read_as_a_whole(type_name: str, vectors: int) -> None:
    whole, counted, unmapped = _weight(type_name)
    x = np.random.default_rng(2).standard_normal((vectors, COLUMNS)).astype(np.float32)
    assert np.array_equal(linear(x, unmapped), linear(x, whole))
    assert 0 < counted.largest_bytes <= MOST_READ_BYTES < counted.nbytes
