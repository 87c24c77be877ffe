"""Codes that other libraries packed: every byte that is read has to be there."""

from __future__ import annotations

import numpy as np
import pytest

import lbrx
from lbrx.errors import ShapeError
from lbrx.tensors.codecs.packed import Packing, integers, unpacked
from lbrx.tensors.tensor import Tensor


def decode(nbytes: int, shape: tuple[int, int], packing: Packing) -> Tensor:
    codes = np.arange(1, nbytes + 1, dtype=np.uint8)
    return Tensor(unpacked(lbrx.tensor(codes).expr, shape, packing, integers(packing.bits)))


@pytest.mark.parametrize(
    ("shape", "packing", "needed"),
    [
        ((2, 8), Packing(4, 4), 8),
        ((2, 6), Packing(4, 4), 7),  # the last line ends within its word
        ((3, 8), Packing(8, 8), 24),
        ((8, 2), Packing(4, 4, is_across=True), 8),
        ((16, 2), Packing(4, 4, 8, is_across=True), 16),
    ],
)
def test_a_part_that_is_a_byte_too_short_is_refused(shape: tuple[int, int], packing: Packing, needed: int) -> None:
    values = decode(needed, shape, packing).numpy()
    assert values.shape == shape
    assert values.max() > 0
    with pytest.raises(ShapeError, match="does not hold what a matrix"):
        decode(needed - 1, shape, packing)


def test_lines_of_codes() -> None:
    assert decode(8, (2, 6), Packing(4, 4)).numpy().tolist() == [[1, 0, 2, 0, 3, 0], [5, 0, 6, 0, 7, 0]]
    assert decode(8, (8, 2), Packing(4, 4, is_across=True)).numpy()[:, 1].tolist() == [5, 0, 6, 0, 7, 0, 8, 0]
