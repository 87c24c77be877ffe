"""Quantizing what a reduction of rows leaves: its rows are not cut where blocks begin."""

from __future__ import annotations

import numpy as np

import lbrx


def test_the_maxima_of_rows() -> None:
    x = lbrx.normal((256, 64, 1000), 1, "x")
    maxima = x.max(axis=-1)
    stored = lbrx.tensor(maxima.numpy())
    assert np.array_equal(maxima.quantize("q8_0").dequantize().numpy(), stored.quantize("q8_0").dequantize().numpy())
