"""The log-likelihood of continuations: how probable a model thinks a text after another one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from lbrx.errors import UsageError
from lbrx.jobs.score.tally import log_softmax
from lbrx.models.inference import LanguageModel
from lbrx.models.tokenizers.text import TextTokenizer


class Request(NamedTuple):
    """Tokens to predict after other tokens."""

    context: tuple[int, ...]
    continuation: tuple[int, ...]


class Likelihood(NamedTuple):
    """The sum of log-probabilities of a continuation; ``is_greedy``: each token is the most likely one."""

    value: float
    is_greedy: bool


def request_of(tokenizer: TextTokenizer, context: str, continuation: str) -> Request:
    """Tokenize context and continuation together, so that the border is that of the whole text.

    Spaces at the end of the context belong to the first word of the continuation. An empty context is the token that
    begins or ends a text.
    """
    spaces = len(context) - len(context.rstrip())
    if spaces:
        context, continuation = context[:-spaces], context[-spaces:] + continuation
    if not context:
        return Request((_first_token(tokenizer),), tuple(tokenizer.encode(continuation, add_special=False)))
    head, whole = _begun(tokenizer, context), _begun(tokenizer, context + continuation)
    return Request(tuple(whole[: len(head)]), tuple(whole[len(head) :]))


def _begun(tokenizer: TextTokenizer, text: str) -> list[int]:
    """The tokens of a text, with the special token at the start, but none at the end."""
    ids = tokenizer.encode(text, add_special=False)
    return [tokenizer.bos_id, *ids] if tokenizer.special.add_bos and tokenizer.bos_id is not None else ids


def _first_token(tokenizer: TextTokenizer) -> int:
    token = tokenizer.bos_id if tokenizer.bos_id is not None else tokenizer.eos_id
    if token is None:
        raise UsageError(f"{tokenizer.label}: has no token that begins a text; expected a context that is not empty")
    return token


def likelihoods(
    model: LanguageModel, requests: Sequence[Request], done: Callable[[int], None] | None = None
) -> list[Likelihood]:
    """Return the likelihood of every request. Requests that differ in their last token only are computed once.

    Tokens before the last ``context_length`` are left out. ``done`` is called with the number of finished requests.
    """
    longest = model.spec.context_length
    groups: dict[tuple[int, ...], list[int]] = {}
    for number, request in enumerate(requests):
        if not request.continuation:
            raise UsageError("a continuation has no tokens; expected some text to predict")
        if len(request.continuation) > longest:
            raise UsageError(
                f"a continuation has {len(request.continuation)} tokens; expected at most {longest}, "
                f"the context length of {model.path}"
            )
        tokens = (*request.context, *request.continuation)
        groups.setdefault(tokens[-longest - 1 : -1], []).append(number)
    results: list[Likelihood] = [Likelihood(0.0, False)] * len(requests)
    for inputs, members in groups.items():
        rows = max(len(requests[number].continuation) for number in members)
        logits = _last_logits(model, inputs, rows)
        shares = log_softmax(logits)
        for number in members:
            targets = np.array(requests[number].continuation)
            own = shares[rows - targets.size :]
            value = float(np.take_along_axis(own, targets[:, None], axis=1).sum(dtype=np.float64))
            if math.isnan(value):
                raise UsageError(f"{model.path}: its logits are not finite; the weights may be damaged")
            results[number] = Likelihood(value, bool((own.argmax(axis=1) == targets).all()))
        if done is not None:
            done(len(members))
    return results


def _last_logits(
    model: LanguageModel, inputs: Sequence[int], rows: int
) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    blocks = [logits for _, logits in model.logit_blocks(inputs, first_row=len(inputs) - rows)]
    return np.concatenate(blocks)


def rolling_requests(tokenizer: TextTokenizer, text: str, longest: int) -> Iterator[Request]:
    """Cut a text into requests that predict every token once, each with at most ``longest`` tokens.

    The first token is predicted from the token that begins a text. The windows do not overlap, except for the last
    one, which is as long as the others.

    >>> from lbrx.demo.models import demo_models
    >>> from lbrx.models.tokenizers.text import open_tokenizer
    >>> tokenizer = open_tokenizer(demo_models().base)
    >>> [len(each.continuation) for each in rolling_requests(tokenizer, "And the king said unto him.", 4)]
    [4, 3]
    """
    ids = tokenizer.encode(text, add_special=False)
    previous = _first_token(tokenizer)
    for start in range(0, len(ids), longest):
        piece = tuple(ids[start : start + longest])
        stop = start + len(piece)
        context = ids[max(stop - longest - 1, 0) : start] if start else []
        yield Request(tuple(context) or (previous,), piece)
