"""What is measured token by token while models go through a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from time import perf_counter

import numpy as np
import numpy.typing as npt

from lbrx.base.fast_dataclass import dataclass
from lbrx.jobs.score.records import Divergence
from lbrx.jobs.score.statistics import (
    Numbers,
    correlation_estimate,
    mean_estimate,
    quantile_estimates,
    root_mean_square,
    token_share_estimate,
)
from lbrx.jobs.score.windows import Window
from lbrx.models.inference import LanguageModel

_PIECE_ELEMENTS = 1 << 20  # of logits that are turned into probabilities at a time
_ROUNDED_RANGE = np.float32(16.0)

Logits = npt.NDArray[np.float32]


@dataclass(slots=True)
class Tally:
    """The measurements of one model, token by token."""

    losses: list[Numbers] = field(default_factory=list)
    expected_losses: list[Numbers] = field(default_factory=list)  # of the reference
    divergences: list[Numbers] = field(default_factory=list)
    changes: list[Numbers] = field(default_factory=list)
    same_tops: list[npt.NDArray[np.bool_]] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, later: Tally) -> None:
        """Append the measurements of the windows that follow."""
        self.losses += later.losses
        self.expected_losses += later.expected_losses
        self.divergences += later.divergences
        self.changes += later.changes
        self.same_tops += later.same_tops
        self.seconds += later.seconds

    @property
    def token_losses(self) -> Numbers:
        return np.concatenate(self.losses)

    def divergence(self) -> Divergence:
        """Summarize the differences from the reference."""
        values, changes = np.concatenate(self.divergences), np.concatenate(self.changes)
        losses, expected = self.token_losses, np.concatenate(self.expected_losses)
        interval, quantiles = mean_estimate(values), quantile_estimates(values)
        same, correlation = token_share_estimate(np.concatenate(self.same_tops)), correlation_estimate(losses, expected)
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
            correlation=correlation.value,
            correlation_interval=correlation,
            loss_change=mean_estimate(losses - expected),
        )


def score_window(
    models: Sequence[LanguageModel],
    tallies: Sequence[Tally],
    ids: Sequence[int],
    window: Window,
    has_reference: bool,
    is_rounded: bool = False,
) -> None:
    """Run the models through a window side by side, by blocks of rows: the logits of all rows never exist at once.

    ``is_rounded`` rounds the log-probabilities of the reference as llama-perplexity does.
    """
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
            _add_rows(tally, logits, targets, reference, is_rounded)
            if has_reference and reference is None:
                reference = logits
        row += rows


def _add_rows(
    tally: Tally, logits: Logits, targets: npt.NDArray[np.int64], reference: Logits | None, is_rounded: bool
) -> None:
    piece_rows = max(1, _PIECE_ELEMENTS // logits.shape[1])
    for first in range(0, len(logits), piece_rows):
        rows = slice(first, first + piece_rows)
        log_shares = log_softmax(logits[rows])
        losses = _of_targets(log_shares, targets[rows])
        tally.losses.append(-losses)
        if reference is None:
            continue
        if is_rounded:
            expected = rounded_log_softmax(reference[rows])
            tops, divergences = expected.argmax(axis=1), _rounded_divergences(expected, log_shares)
        else:
            expected = log_softmax(reference[rows])
            tops, divergences = reference[rows].argmax(axis=1), _divergences(expected, log_shares)
        expected_losses = _of_targets(expected, targets[rows])
        tally.expected_losses.append(-expected_losses)
        tally.divergences.append(divergences)
        tally.changes.append(np.exp(losses) - np.exp(expected_losses))
        tally.same_tops.append(tops == logits[rows].argmax(axis=1))


def _divergences(expected: Logits, log_shares: Logits) -> Numbers:
    terms = np.exp(expected) * (expected - log_shares)
    sums: Numbers = terms.sum(axis=1, dtype=np.float64)
    return np.maximum(sums, 0.0)


def _rounded_divergences(expected: Logits, log_shares: Logits) -> Numbers:
    """Divergences without the tokens that the reference finds nearly impossible. Rounding can make them negative."""
    terms = np.exp(expected) * (expected - log_shares) * (expected > -_ROUNDED_RANGE)
    sums: Numbers = terms.sum(axis=1, dtype=np.float64)
    return sums


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


def rounded_log_softmax(logits: Logits) -> Logits:
    """The log-softmax of rows of logits as the files of llama-perplexity store it: 16 nats below the largest in 65,535
    steps. What is smaller has the smallest value.

    >>> rounded_log_softmax(np.array([[0.0, -1.0001, -99.0]], np.float32)).round(3)
    array([[ -0.313,  -1.313, -16.313]], dtype=float32)
    """
    exact = log_softmax(logits)
    low, high = exact.min(axis=1, keepdims=True), exact.max(axis=1, keepdims=True)
    low = np.maximum(low, high - _ROUNDED_RANGE)
    step = (high - low) / np.float32(65535)
    steps = np.rint((exact - low) / np.where(step > 0, step, np.float32(1)))
    result: Logits = np.maximum(steps, 0) * step + low
    return result
