"""Losses of logits: how unlikely the tokens are that follow."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.devices.cpu.build.native import address, run
from lbrx.engine.arrays import Floats, floats
from lbrx.engine.blas import in_ranges
from lbrx.errors import ShapeError

_PIECE_ELEMENTS = 1 << 18


def token_losses(logits: Floats, targets: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.float64]:
    """Return minus the log-softmax of each row of logits [n, vocabulary] at its target: rows are read, not copied.

    >>> token_losses(np.zeros((1, 4), np.float32), np.array([2])).round(4)
    array([1.3863])
    """
    values = floats(logits)
    if values.ndim != 2 or targets.shape != values.shape[:1] or not values.shape[1]:
        raise ShapeError(f"logits of shape {values.shape}, targets of shape {targets.shape}; expected [n, m] and [n]")
    rows, columns = values.shape
    found = np.empty((rows, 2))

    def work(first: int, stop: int) -> None:
        run("norms", "log_totals", address(values[first:]), address(found[first:]), stop - first, columns)

    in_ranges(rows, max(1, _PIECE_ELEMENTS // columns), work)
    with np.errstate(all="ignore"):
        above = values[np.arange(rows), targets] - found[:, 0].astype(np.float32)
        losses: npt.NDArray[np.float64] = (np.log(found[:, 1]).astype(np.float32) - above).astype(np.float64)
    return losses
