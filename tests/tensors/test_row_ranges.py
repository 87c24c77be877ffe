"""Ranges of rows of joined expressions, and leaves seen through other layouts."""

from __future__ import annotations

import numpy as np
import pytest

import lbrx
from lbrx.engine.fuse import Input
from lbrx.tensors.dtype import dtype
from lbrx.tensors.expr import Concat
from lbrx.tensors.shape import Layout
from lbrx.tensors.views import row_range


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (2, 2), (5, 5), (0, 1), (1, 4), (2, 5), (0, 5)])
def test_ranges_of_joined_rows(start: int, stop: int) -> None:
    parts = [np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(10, 19, dtype=np.float32).reshape(3, 3)]
    joined = Concat(tuple(lbrx.tensor(part).expr for part in parts), 0)
    taken = lbrx.Tensor(row_range(joined, start, stop)).numpy()
    np.testing.assert_array_equal(taken, np.concatenate(parts)[start:stop])


def test_a_leaf_through_another_layout_stays_a_leaf() -> None:
    leaf = Input(3, "source", dtype("f32"), Layout.contiguous((2, 3)))
    seen = leaf.through(Layout((3, 2), (1, 3), 0))
    assert isinstance(seen, Input)
    assert (seen.number, seen.origin, seen.shape, seen.layout.strides) == (3, "source", (3, 2), (1, 3))
