"""Losses on texts that were not searched on, for the report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lbrx.jobs.score.score import score
from lbrx.jobs.search.objectives import Objectives, pieces_of
from lbrx.jobs.search.settings import Measurer

Texts = Sequence[tuple[str, str]]

_MOST_TOKENS = 8192


def losses_of_candidate(measurer: Measurer, recipe: str, texts: Texts) -> dict[str, float]:
    """Return the mean loss of a merge on each text, without writing the merge."""
    ids = [measurer.tokenizer.encode(_scored(content))[: _MOST_TOKENS + 1] for _, content in texts]
    objectives = Objectives([name for name, _ in texts], pieces_of(ids, measurer.context, _MOST_TOKENS))
    return objectives.measured(measurer.candidate(recipe))


def losses_of_model(measurer: Measurer, path: Path, texts: Texts) -> dict[str, float]:
    """Return the mean loss of an input on each text, over the same windows."""
    context = measurer.context
    found = {}
    for name, content in texts:
        text = _scored(content)
        (one,) = score(path, text, context=context, stride=context - 1, max_tokens=_MOST_TOKENS + 1)
        found[name] = one.loss
    return found


def _scored(content: str) -> str:
    """Return the begin of a text. It has a line break, so that it cannot be the name of a file."""
    begin = content[: 16 * _MOST_TOKENS]
    return begin if "\n" in begin else begin + "\n"
