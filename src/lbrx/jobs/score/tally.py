"""What is measured token by token while models go through a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from time import perf_counter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lbrx.base.fast_dataclass import dataclass
from lbrx.jobs.score.records import Divergence
from lbrx.jobs.score.statistics import (
    Numbers,
    mean_estimate,
    quantile_estimates,
    root_mean_square,
    share_estimate,
)
from lbrx.models.inference import LanguageModel

_PIECE_ELEMENTS = 1 << 20  # of logits that are turned into probabilities at a time

Logits = npt.NDArray[np.float32]


class Window(NamedTuple):
    """Tokens ``start`` to ``stop``, of which those from ``first_scored`` on are predicted."""

    start: int
    stop: int
    first_scored: int


@dataclass(slots=True)
class Tally:
    """The measurements of one model, token by token."""

    losses: list[Numbers] = field(default_factory=list)
    divergences: list[Numbers] = field(default_factory=list)
    changes: list[Numbers] = field(default_factory=list)
    same_tops: int = 0
    seconds: float = 0.0

    def add(self, later: Tally) -> None:
        """Append the measurements of the windows that follow."""
        self.losses += later.losses
        self.divergences += later.divergences
        self.changes += later.changes
        self.same_tops += later.same_tops
        self.seconds += later.seconds

    @property
    def token_losses(self) -> Numbers:
        return np.concatenate(self.losses)

    def divergence_from(self, reference: Tally) -> Divergence:
        """Summarize the differences from the reference."""
        values, changes = np.concatenate(self.divergences), np.concatenate(self.changes)
        losses, expected = self.token_losses, reference.token_losses
        interval, quantiles = mean_estimate(values), quantile_estimates(values)
        same = share_estimate(self.same_tops, values.size)
        varies = values.size > 1 and losses.std() > 0 and expected.std() > 0
        return Divergence(
            mean=interval.value,
            percentile_99=quantiles[0.99].value,
            same_top=same.value,
            mean_interval=interval,
            same_top_interval=same,
            quantiles=quantiles,
            change_mean=mean_estimate(changes),
            change_root_mean_square=root_mean_square(changes),
            change_quantiles=quantile_estimates(changes),
            correlation=float(np.corrcoef(losses, expected)[0, 1]) if varies else float("nan"),
            loss_change=mean_estimate(losses - expected),
        )


def score_window(
    models: Sequence[LanguageModel], tallies: Sequence[Tally], ids: Sequence[int], window: Window, has_reference: bool
) -> None:
    """Run the models through a window side by side, by blocks of rows: the logits of all rows never exist at once."""
    inputs = ids[window.start : window.stop - 1]
    first_row = window.first_scored - 1 - window.start
    runs = [model.logit_blocks(inputs, first_row=first_row) for model in models]
    row = first_row
    while row < len(inputs):
        reference: Logits | None = None
        rows = 0
        for tally, run in zip(tallies, runs, strict=True):
            start = perf_counter()
            first, logits = next(run)
            tally.seconds += perf_counter() - start
            rows = len(logits)
            targets = np.asarray(ids[window.start + first + 1 : window.start + first + 1 + rows])
            _add_rows(tally, logits, targets, reference)
            if has_reference and reference is None:
                reference = logits
        row += rows


def _add_rows(tally: Tally, logits: Logits, targets: npt.NDArray[np.int64], reference: Logits | None) -> None:
    piece_rows = max(1, _PIECE_ELEMENTS // logits.shape[1])
    for first in range(0, len(logits), piece_rows):
        rows = slice(first, first + piece_rows)
        log_shares = log_softmax(logits[rows])
        losses = _of_targets(log_shares, targets[rows])
        tally.losses.append(-losses)
        if reference is None:
            continue
        expected = log_softmax(reference[rows])
        terms = np.exp(expected) * (expected - log_shares)
        tally.divergences.append(np.maximum(terms.sum(axis=1, dtype=np.float64), 0.0))
        tally.changes.append(np.exp(losses) - np.exp(_of_targets(expected, targets[rows])))
        tally.same_tops += int(np.count_nonzero(reference[rows].argmax(axis=1) == logits[rows].argmax(axis=1)))


def _of_targets(log_shares: Logits, targets: npt.NDArray[np.int64]) -> Numbers:
    return np.take_along_axis(log_shares, targets[:, None], axis=1)[:, 0].astype(np.float64)


def log_softmax(logits: Logits) -> Logits:
    """The log-softmax of rows of logits.

    >>> log_softmax(np.zeros((1, 2), np.float32)).round(4)
    array([[-0.6931, -0.6931]], dtype=float32)
    """
    shifted = logits - logits.max(axis=1, keepdims=True)
    totals = np.exp(shifted).sum(axis=1, dtype=np.float64, keepdims=True)
    result: Logits = shifted - np.log(totals).astype(np.float32)
    return result
