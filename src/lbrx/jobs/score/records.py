"""The results of `lbrx.score`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path

import numpy as np

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import UsageError
from lbrx.jobs.score.statistics import Estimate, Numbers, mean_estimate, probability_of_no_difference

_NO_NUMBERS = np.empty(0)


@dataclass(frozen=True, slots=True)
class Divergence:
    """How far a model's predictions are from those of the reference.

    ``mean``, ``median``, ``percentile_99`` and the ``quantiles`` are of the Kullback-Leibler divergence in nats per
    token. The ``change`` of a token is the change of its probability. ``correlation`` is between the losses of both
    models, ``loss_change`` the mean difference of their losses.
    """

    mean: float
    percentile_99: float
    same_top: float
    mean_interval: Estimate
    same_top_interval: Estimate
    quantiles: Mapping[float, Estimate]
    change_mean: Estimate
    change_root_mean_square: Estimate
    change_quantiles: Mapping[float, Estimate]
    correlation: float
    correlation_interval: Estimate
    loss_change: Estimate

    @property
    def median(self) -> float:
        return self.quantiles[0.5].value

    @property
    def perplexity_ratio(self) -> Estimate:
        """The perplexity of the model divided by that of the reference."""
        change = self.loss_change
        return Estimate(*(math.exp(min(each, 700.0)) for each in (change.value, change.low, change.high)))


@dataclass(frozen=True, slots=True)
class Score:
    """How well a model predicts a text: ``loss`` is in nats per token, with the standard error of its mean.

    ``loss_error`` treats tokens as independent, as llama.cpp does, and is therefore slightly too small. The
    ``loss_interval`` does not.
    """

    model: Path
    tokens: int
    loss: float
    loss_error: float
    loss_interval: Estimate
    bits_per_byte: float
    seconds: float
    processed_tokens: int
    divergence: Divergence | None = None
    scored_bytes: int = 0
    ids: tuple[int, ...] = field(default=(), repr=False, compare=False)
    token_losses: Numbers = field(default_factory=lambda: _NO_NUMBERS, repr=False, compare=False)

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.loss, 700.0))

    @property
    def perplexity_error(self) -> float:
        return self.perplexity * self.loss_error

    @property
    def perplexity_interval(self) -> Estimate:
        interval = self.loss_interval
        return Estimate(*(math.exp(min(each, 700.0)) for each in (interval.value, interval.low, interval.high)))

    @property
    def tokens_per_second(self) -> float:
        """Tokens that went through the model, including those that were only context."""
        return self.processed_tokens / max(self.seconds, 1e-9)

    def _repr_html_(self) -> str:
        """Return HTML for notebooks."""
        from lbrx.tensors.display import table_html

        error = f"{self.perplexity:.4f} ± {self.perplexity_error:.4f}"
        row = (f"{self.tokens:,}", error, f"{self.loss:.4f}", f"{self.bits_per_byte:.4f}")
        return table_html(str(self.model), ("tokens", "perplexity", "loss", "bits per byte"), [row])


@dataclass(frozen=True, slots=True)
class Comparison:
    """A paired test of two models on the same tokens: negative if ``model`` predicts them better than ``other``."""

    model: Path
    other: Path
    difference: Estimate
    p_value: float

    @property
    def is_significant(self) -> bool:
        """Whether the difference is unlikely to be chance: less than one in twenty."""
        return self.p_value < 0.05

    def __str__(self) -> str:
        size = f"{abs(self.difference.value):.4f} nats per token"
        if math.isnan(self.p_value):
            return f"{self.model} and {self.other}: differ by {size}; too few tokens to test the difference"
        ends = sorted((abs(self.difference.low), abs(self.difference.high)))
        if not self.is_significant:
            return f"{self.model} and {self.other}: no significant difference ({size}, p = {self.p_value:.2g})"
        word = "better" if self.difference.value < 0 else "worse"
        p_value = "p < 0.001" if self.p_value < 0.001 else f"p = {self.p_value:.2g}"
        return f"{self.model} is {word} than {self.other} by {size} ({ends[0]:.4f} to {ends[1]:.4f}, {p_value})"


def compare_scores(model: Score, other: Score) -> Comparison:
    """Test whether two models that were scored on the same tokens differ.

    Pairing the tokens removes most of the noise: differences far below the standard errors of both losses are found.

    >>> losses = np.linspace(2.0, 3.0, 1000)
    >>> text = tuple(range(1001))
    >>> def score_of(name, losses):
    ...     interval = mean_estimate(losses)
    ...     return Score(Path(name), 1000, interval.value, 0.0, interval, 1.0, 1.0, 1000, None, 4000, text, losses)
    >>> print(compare_scores(score_of("a", losses - 0.01), score_of("b", losses)))
    a is better than b by 0.0100 nats per token (0.0100 to 0.0100, p < 0.001)
    """
    if model.ids != other.ids or model.token_losses.size != other.token_losses.size:
        raise UsageError(
            f"{model.model} and {other.model} were not scored on the same tokens; "
            "expected the same text, tokenizer and context, or compare bits per byte"
        )
    differences = model.token_losses - other.token_losses
    return Comparison(model.model, other.model, mean_estimate(differences), probability_of_no_difference(differences))


def comparisons_with_best(scores: Sequence[Score]) -> list[Comparison]:
    """Compare the model with the least loss with each of the others that was scored on the same tokens.

    The reference is left out.
    """
    has_reference = any(one.divergence is not None for one in scores)
    compared = [one for one in scores if one.divergence is not None or not has_reference]
    best = min(compared, key=lambda one: one.loss)
    return [
        compare_scores(best, other)
        for other in compared
        if other is not best and other.ids == best.ids and other.token_losses.size == best.token_losses.size
    ]
