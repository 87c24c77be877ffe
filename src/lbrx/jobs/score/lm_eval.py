"""A model of lbrx for lm-evaluation-harness (the package lm_eval, which is not installed with lbrx).

import lm_eval
from lbrx.lm_eval import LbrxLM

results = lm_eval.simple_evaluate(model=LbrxLM("model.gguf"), tasks=["arc_easy"])
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any

from lbrx.errors import UsageError
from lbrx.jobs.score.likelihood import likelihoods, request_of, rolling_requests
from lbrx.models.inference import Sampling, open_model
from lbrx.models.inference.streaming import text_pieces
from lbrx.models.tokenizers.text import open_tokenizer

_MOST_NEW_TOKENS = 256


class HarnessModel:
    """The requests of lm-evaluation-harness, answered by a model of lbrx."""

    def __init__(self, model: str | PathLike[str]) -> None:
        super().__init__()
        self._model, self._tokenizer = open_model(Path(model)), open_tokenizer(Path(model))

    @property
    def tokenizer_name(self) -> str:
        return self._tokenizer.label

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """Return the log-likelihood of each continuation, and whether greedy decoding gives it."""
        pairs = [request_of(self._tokenizer, *request.args) for request in requests]
        return [(one.value, one.is_greedy) for one in likelihoods(self._model, pairs)]

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """Return the log-likelihood of each whole text."""
        longest = self._model.spec.context_length
        totals = []
        for request in requests:
            windows = list(rolling_requests(self._tokenizer, request.args[0], longest))
            totals.append(sum(one.value for one in likelihoods(self._model, windows)))
        return totals

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Continue each context until one of the texts in ``until`` appears."""
        return [self._continued(*request.args) for request in requests]

    def _continued(self, context: str, settings: dict[str, Any]) -> str:
        until = settings.get("until") or []
        ends = [until] if isinstance(until, str) else [end for end in until if end]
        limit = int(settings.get("max_gen_toks", _MOST_NEW_TOKENS))
        temperature = float(settings.get("temperature", 0.0)) if settings.get("do_sample") else 0.0
        sampling = Sampling(temperature, int(settings.get("top_k", 0)), float(settings.get("top_p", 1.0)))
        ids = self._tokenizer.encode(context)[-max(self._model.spec.context_length - limit, 1) :]
        tokens = self._model.generate(ids, limit, sampling, stop_ids=self._tokenizer.stop_ids)
        text = ""
        for piece in text_pieces(self._tokenizer.decode, tokens, before=ids):
            text += piece
            found = [place for end in ends if (place := text.find(end)) >= 0]
            if found:
                return text[: min(found)]
        return text


def LbrxLM(model: str | PathLike[str]) -> Any:
    """Open a model as an ``LM`` of lm-evaluation-harness."""
    return _harness_class()(model)


@cache
def _harness_class() -> type[Any]:
    try:
        base = import_module("lm_eval.api.model").LM
    except ImportError as error:
        raise UsageError("lbrx.lm_eval needs the package lm_eval; install it with: pip install lm_eval") from error
    return type("LbrxLM", (HarnessModel, base), {"__doc__": HarnessModel.__doc__, "__module__": __name__})
