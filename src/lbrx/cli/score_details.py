"""Details of scores: intervals and the distribution of differences, as a table and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from lbrx.jobs.score.choices import ChoiceScore
    from lbrx.jobs.score.records import Comparison, Divergence, Score
    from lbrx.jobs.score.statistics import Estimate


def details_table(score: Score) -> Table:
    """Return every figure of a score with its 95 % confidence interval."""
    from lbrx.cli.console import columns, printable

    table = columns(printable(str(score.model)), "value", "from", "to", left=(printable(str(score.model)),))
    for name, estimate in _rows(score):
        table.add_row(name, *(number_text(each, ".5g") for each in (estimate.value, estimate.low, estimate.high)))
    return table


def number_text(value: float, form: str) -> str:
    """Return a number as text; "-" if there is none, such as the error of a single value.

    >>> number_text(2.5, ".2f"), number_text(math.nan, ".2f")
    ('2.50', '-')
    """
    return "-" if math.isnan(value) else format(value, form)


def _rows(score: Score) -> Iterator[tuple[str, Estimate]]:
    yield "loss, nats per token", score.loss_interval
    yield "perplexity", score.perplexity_interval
    if score.divergence is not None:
        yield from _divergence_rows(score.divergence)


def _divergence_rows(divergence: Divergence) -> Iterator[tuple[str, Estimate]]:
    yield "loss - loss of the reference", divergence.loss_change
    yield "perplexity / perplexity of the reference", divergence.perplexity_ratio
    yield "correlation of the losses", divergence.correlation_interval
    yield "KL divergence, mean", divergence.mean_interval
    for share, estimate in sorted(divergence.quantiles.items(), reverse=True):
        yield f"KL divergence, {_quantile_name(share)}", estimate
    yield "change of probability, mean", divergence.change_mean
    yield "change of probability, root mean square", divergence.change_root_mean_square
    for share, estimate in sorted(divergence.change_quantiles.items(), reverse=True):
        yield f"change of probability, {_quantile_name(share)}", estimate
    yield "same top token", divergence.same_top_interval


def _quantile_name(share: float) -> str:
    return {0.0: "minimum", 0.5: "median", 1.0: "maximum"}.get(share, f"{100 * share:g} %")


def score_as_json(score: Score) -> dict[str, Any]:
    """Return a score as JSON-compatible values. NaN and infinities become null."""
    values: dict[str, Any] = {
        "model": str(score.model),
        "tokens": score.tokens,
        "loss": score.loss,
        "loss_error": score.loss_error,
        "loss_interval": _interval(score.loss_interval),
        "perplexity": score.perplexity,
        "perplexity_error": score.perplexity_error,
        "perplexity_interval": _interval(score.perplexity_interval),
        "bits_per_byte": score.bits_per_byte,
        "bytes": score.scored_bytes,
        "seconds": score.seconds,
        "tokens_per_second": score.tokens_per_second,
    }
    if score.divergence is not None:
        values |= _divergence_values(score.divergence)
    return {key: _finite(value) for key, value in values.items()}


def _divergence_values(divergence: Divergence) -> dict[str, Any]:
    return {
        "kl_mean": divergence.mean,
        "kl_mean_interval": _interval(divergence.mean_interval),
        "kl_median": divergence.median,
        "kl_99_percent": divergence.percentile_99,
        "kl_quantiles": _quantiles(divergence.quantiles),
        "same_top": divergence.same_top,
        "same_top_interval": _interval(divergence.same_top_interval),
        "probability_change_mean": divergence.change_mean.value,
        "probability_change_rms": divergence.change_root_mean_square.value,
        "probability_change_rms_interval": _interval(divergence.change_root_mean_square),
        "probability_change_quantiles": _quantiles(divergence.change_quantiles),
        "loss_correlation": _finite(divergence.correlation),
        "loss_correlation_interval": _interval(divergence.correlation_interval),
        "loss_change": divergence.loss_change.value,
        "loss_change_interval": _interval(divergence.loss_change),
        "perplexity_ratio": divergence.perplexity_ratio.value,
    }


def comparison_as_json(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as JSON-compatible values."""
    return {
        "model": str(comparison.model),
        "other": str(comparison.other),
        "loss_difference": _finite(comparison.difference.value),
        "interval": _interval(comparison.difference),
        "p_value": _finite(comparison.p_value),
    }


def choices_table(scores: Sequence[ChoiceScore]) -> Table:
    """Return a table with one row per model and the best accuracy in bold."""
    from lbrx.cli.console import columns, printable

    table = columns("model", "questions", "accuracy", "95 %", "by length", "95 %", "loss", left=("model",))
    best = max(one.accuracy.value for one in scores)
    for one in scores:
        cells = [printable(str(one.model)), f"{one.questions:,}"]
        for share in (one.accuracy, one.accuracy_normalized):
            cells += [f"{share.value:.1%}", f"{share.low:.1%} to {share.high:.1%}"]
        style = "bold" if one.accuracy.value == best and len(scores) > 1 else None
        table.add_row(*cells, f"{one.loss:.4f}", style=style)
    return table


def choices_as_json(score: ChoiceScore) -> dict[str, Any]:
    """Return a multiple-choice score as JSON-compatible values."""
    return {
        "model": str(score.model),
        "questions": score.questions,
        "accuracy": score.accuracy.value,
        "accuracy_interval": _interval(score.accuracy),
        "accuracy_normalized": score.accuracy_normalized.value,
        "accuracy_normalized_interval": _interval(score.accuracy_normalized),
        "loss": _finite(score.loss),
    }


def _quantiles(estimates: Mapping[float, Estimate]) -> dict[str, float | None]:
    return {f"{100 * share:g}%": _finite(estimate.value) for share, estimate in estimates.items()}


def _interval(estimate: Estimate) -> list[float | None]:
    return [_finite(estimate.low), _finite(estimate.high)]


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
