"""Checksums and the search for values that are not finite, on bytes in memory."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lbrx
from lbrx.files.output.checksum import BLOCK_BYTES, Checksum
from lbrx.files.output.nonfinite import has_nonfinite


@given(st.integers(0, 3 * BLOCK_BYTES), st.lists(st.integers(0, 3 * BLOCK_BYTES), max_size=6), st.randoms())
def test_a_checksum_does_not_depend_on_the_pieces(size: int, cuts: list[int], random: Random) -> None:
    data = np.random.default_rng(size).integers(0, 255, size, dtype=np.uint8)
    whole = Checksum(size)
    whole.add(0, data)
    edges = sorted({0, size, *(cut for cut in cuts if cut < size)})
    pieces = list(pairwise(edges))
    random.shuffle(pieces)
    parts = Checksum(size)
    for start, stop in pieces:
        parts.add(start, data[start:stop])
    assert parts.hexdigest() == whole.hexdigest()
    if size:
        changed = data.copy()
        changed[size // 2] ^= 1
        other = Checksum(size)
        other.add(0, changed)
        assert other.hexdigest() != whole.hexdigest()


@pytest.mark.parametrize("dtype_name", ["f64", "f32", "f16", "bf16", "f8_e5m2", "f8_e4m3"])
def test_nonfinite_bits_of_every_type(dtype_name: str) -> None:
    row = lbrx.dtype(dtype_name)
    finite = np.array([0.0, -0.0, 1.5, -448.0 if row.bits == 8 else -30000.0, 2**-9], row.numpy)
    assert not has_nonfinite(finite.view(np.uint8), row)
    values = [np.nan, -np.nan] if dtype_name == "f8_e4m3" else [np.nan, -np.nan, np.inf, -np.inf]
    for value in values:
        assert has_nonfinite(np.append(finite, np.array(value, row.numpy)).view(np.uint8), row)


def test_a_block_may_be_completed_by_one_byte() -> None:
    data = np.random.default_rng(0).integers(0, 255, 2 * BLOCK_BYTES, dtype=np.uint8)
    whole, parts = Checksum(data.size), Checksum(data.size)
    whole.add(0, data)
    for start, stop in ((BLOCK_BYTES, data.size), (0, BLOCK_BYTES - 1), (BLOCK_BYTES - 1, BLOCK_BYTES)):
        parts.add(start, data[start:stop])
    assert parts.hexdigest() == whole.hexdigest()
