"""Losses of tokens, compared with the log-softmax of NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import lbrx
from lbrx.errors import ShapeError
from lbrx.ops.losses import token_losses
from support.references import THREADS, normal


@pytest.mark.parametrize("columns", [1, 7, 16, 33, 50_000])
def test_losses_are_those_of_a_log_softmax(columns: int) -> None:
    logits = normal(9, columns, scale=8.0)
    targets = np.random.default_rng(3).integers(0, columns, 9)
    wide = logits.astype(np.float64)
    expected = np.logaddexp.reduce(wide, axis=1) - wide[np.arange(9), targets]
    np.testing.assert_allclose(token_losses(logits, targets), expected, rtol=1e-6, atol=4e-6)


def test_the_same_on_any_number_of_threads() -> None:
    logits, targets = normal(40, 30_000), np.arange(40)
    found = []
    for threads in THREADS:
        with lbrx.using(threads=threads):
            found.append(token_losses(logits, targets).tobytes())
    assert found[0] == found[1] == found[2]


def test_logits_that_are_not_finite_concern_their_row_only() -> None:
    logits = normal(4, 40)
    logits[1, 3], logits[2, 39] = np.nan, np.inf
    losses = token_losses(logits, np.zeros(4, np.int64))
    assert np.isnan(losses[[1, 2]]).all()
    assert np.isfinite(losses[[0, 3]]).all()


def test_shapes_that_do_not_match() -> None:
    with pytest.raises(ShapeError, match=r"logits of shape \(4, 40\), targets of shape \(3,\)"):
        token_losses(normal(4, 40), np.zeros(3, np.int64))
