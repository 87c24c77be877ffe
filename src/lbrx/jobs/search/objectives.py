"""What a search minimizes: losses on texts, divergence from a reference, wrong answers, or a function of the user."""

from __future__ import annotations

import math
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from threading import Lock
from typing import Literal

import numpy as np

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import FileError, LbrxError, UsageError
from lbrx.jobs.score.choices import Question
from lbrx.jobs.score.likelihood import Request, request_of
from lbrx.jobs.score.statistics import Numbers
from lbrx.jobs.score.tally import Logits, log_softmax
from lbrx.jobs.search.candidate import Candidate, HiddenCache
from lbrx.models.inference.language_model import LanguageModel
from lbrx.models.tokenizers.text import TextTokenizer
from lbrx.ops.losses import token_losses

Measure = Literal["loss", "kl"]
UserFunction = Callable[[LanguageModel, TextTokenizer], float]

_REFERENCE_BYTES = 512 << 20
_REMEMBERED_CANDIDATES = 64


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive tokens of a text: all but the first are predicted."""

    text: int
    number: int
    ids: tuple[int, ...]


def pieces_of(texts: Sequence[Sequence[int]], context: int, most_tokens: int) -> list[list[Piece]]:
    """Cut each text into pieces of ``context`` tokens, in the order in which they are used.

    Pieces of a text are ordered so that the first few are spread over all of it.

    >>> [piece.ids[0] for piece in pieces_of([range(100)], 11, 80)[0]]
    [0, 40, 20, 60, 10, 50, 30, 70]
    """
    found = []
    for text, all_ids in enumerate(texts):
        step, ids = context - 1, all_ids[: most_tokens + 1]
        starts = range(0, max(len(ids) - 1, 1), step)
        own = [Piece(text, number, tuple(ids[start : start + context])) for number, start in enumerate(starts)]
        whole = max((len(ids) - 1) // step, 1)  # a piece that is shorter than the others is used last
        found.append([own[place] for place in (*_spread(whole), *range(whole, len(own))) if len(own[place].ids) > 1])
    return found


def _spread(count: int) -> list[int]:
    """The numbers below ``count`` with those first that halve the gaps between earlier ones."""
    bits = max(count - 1, 1).bit_length()
    numbers = [int(f"{number:0{bits}b}"[::-1], 2) for number in range(1 << bits)]
    return [number for number in numbers if number < count]


class MeasuredPieces:
    """What candidates that were measured last have on single pieces: those of a small share count again on a larger."""

    def __init__(self, most_candidates: int) -> None:
        self._most_candidates = most_candidates
        self._known: OrderedDict[bytes, dict[Piece, Numbers]] = OrderedDict()
        self._lock = Lock()

    def of(self, key: bytes) -> dict[Piece, Numbers]:
        """Return what is known of a candidate, to be added to."""
        with self._lock:
            known = self._known.setdefault(key, {})
            self._known.move_to_end(key)
            while len(self._known) > self._most_candidates:
                self._known.popitem(last=False)
        return known


class Objectives:
    """Measures candidates. Every figure is lower for a better model."""

    def __init__(
        self,
        names: Sequence[str],
        pieces: Sequence[Sequence[Piece]],
        *,
        measure: Measure = "loss",
        reference: LanguageModel | None = None,
        questions: Sequence[Question] = (),
        tokenizer: TextTokenizer | None = None,
        function: UserFunction | None = None,
        cache: HiddenCache | None = None,
    ) -> None:
        if measure == "kl" and reference is None:
            raise UsageError("the objective 'kl' compares with a reference; expected one")
        self.pieces = pieces
        self.names = (*names, *(["choices"] if questions else []), *(["function"] if function is not None else []))
        self._texts = len(names)
        self._measure, self._reference = measure, reference
        self._tokenizer, self._function, self._cache = tokenizer, function, cache
        self._measured = MeasuredPieces(_REMEMBERED_CANDIDATES)
        self._known_logits: dict[Piece, Logits] = {}
        self._known_bytes = 0
        self._lock = Lock()  # candidates may be measured side by side
        self._requests: list[tuple[list[Request], int]] = []
        if questions:
            assert tokenizer is not None
            self._requests = [
                ([request_of(tokenizer, question.prompt, choice) for choice in question.choices], question.answer)
                for question in questions
            ]

    def measured(self, candidate: Candidate, share: float = 1.0) -> dict[str, float]:
        """Return the figures of a candidate on a share of the texts and questions, by name."""
        chosen = [piece for own in self.pieces for piece in own[: max(math.ceil(share * len(own)), 1)]]
        figures = self._of_texts(candidate, chosen)
        if self._requests:
            count = max(math.ceil(share * len(self._requests)), 1)
            figures["choices"] = self._wrong(candidate, self._requests[:count])
        if self._function is not None:
            assert self._tokenizer is not None
            figures["function"] = _finite(_value(self._function, candidate.model, self._tokenizer))
        return figures

    def _of_texts(self, candidate: Candidate, chosen: Sequence[Piece]) -> dict[str, float]:
        if not chosen:
            return {}
        known = self._measured.of(candidate.layer_keys[-1])
        missing = [piece for piece in chosen if piece not in known]
        if missing:
            run = candidate.run([piece.ids[:-1] for piece in missing], self._cache)
            for number, piece in enumerate(missing):
                known[piece] = np.concatenate(self._of_piece(piece, run.logit_blocks(number)))
        values: list[list[Numbers]] = [[] for _ in range(self._texts)]
        for piece in chosen:
            values[piece.text].append(known[piece])
        return {
            name: _finite(float(np.concatenate(own).mean()))
            for name, own in zip(self.names, values, strict=False)
            if own
        }

    def _of_piece(self, piece: Piece, blocks: Iterable[tuple[int, Logits]]) -> list[Numbers]:
        found: list[Numbers] = []
        for first, logits in blocks:
            if self._measure == "kl":
                shares = log_softmax(logits)
                expected = log_softmax(self._reference_rows(piece)[first : first + len(logits)])
                terms = np.exp(expected) * (expected - shares)
                found.append(np.maximum(terms.sum(axis=1, dtype=np.float64), 0.0))
            else:
                targets = np.array(piece.ids[first + 1 : first + 1 + len(logits)])
                found.append(token_losses(logits, targets))
        return found

    def _reference_rows(self, piece: Piece) -> Logits:
        """The reference's logits of a piece, kept in memory as far as they fit."""
        assert self._reference is not None
        with self._lock:
            known = self._known_logits.get(piece)
            if known is not None:
                return known
            logits = self._reference.logits(piece.ids[:-1])
            if self._known_bytes + logits.nbytes <= _REFERENCE_BYTES:
                self._known_logits[piece] = logits
                self._known_bytes += logits.nbytes
            return logits

    def _wrong(self, candidate: Candidate, requests: Sequence[tuple[Sequence[Request], int]]) -> float:
        """The share of wrong answers."""
        flat = [request for own, _ in requests for request in own]
        run = candidate.run([(*request.context, *request.continuation)[:-1] for request in flat], self._cache)
        values = []
        for number, request in enumerate(flat):
            first_row = len(request.context) - 1
            shares = log_softmax(np.concatenate([rows for _, rows in run.logit_blocks(number, first_row)]))
            targets = np.array(request.continuation)[:, None]
            values.append(float(np.take_along_axis(shares, targets, axis=1).sum(dtype=np.float64)))
        wrong, start = 0, 0
        for own, answer in requests:
            likelihoods = values[start : start + len(own)]
            is_finite = all(map(math.isfinite, likelihoods))
            wrong += not is_finite or likelihoods.index(max(likelihoods)) != answer
            start += len(own)
        return wrong / len(requests)


def _value(function: UserFunction, model: LanguageModel, tokenizer: TextTokenizer) -> float:
    """Call a function of the user. Its mistakes are reported in one line with the place in its file."""
    name = getattr(function, "__name__", "function")
    try:
        value: object = function(model, tokenizer)
        if not isinstance(value, str | bytes) and hasattr(value, "__float__"):
            return float(value)
    except LbrxError:
        raise
    except Exception as error:
        raise UsageError(f"the function {name!r} raised {_described(error)}") from error
    raise UsageError(f"the function {name!r} returned {value!r:.60}; expected a number, lower for better models")


def _described(error: Exception) -> str:
    """The type and the text of an exception, and the line that raised it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(str(error).split())
    return f"{type(error).__name__}{f': {text:.200}' if text else ''} ({last.filename}, line {last.lineno})"


def _finite(value: float) -> float:
    return value if math.isfinite(value) else math.inf


def load_function(reference: str) -> UserFunction:
    """Load ``file.py:name``, a function of a model and its tokenizer that returns a number, lower for better models."""
    file, _, name = reference.rpartition(":")
    path = Path(file)
    if not name or path.suffix != ".py":
        raise UsageError(f"the function {reference!r} is not known; expected FILE.py:NAME")
    if not path.is_file():
        raise FileError(f"{path}: does not exist; expected the Python file of the function {name!r}")
    spec = spec_from_file_location("lbrx_search_function", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UsageError(f"{path}: cannot be run: {_described(error)}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise UsageError(f"{path}: has no function {name!r}")
    return function  # type: ignore[no-any-return]


def combined(figures: Mapping[str, float], how: Literal["mean", "worst"]) -> float:
    """Return one number for several figures.

    >>> combined({"prose": 2.0, "code": 3.0}, "mean"), combined({"prose": 2.0, "code": 3.0}, "worst")
    (2.5, 3.0)
    """
    values = list(figures.values())
    return max(values) if how == "worst" else math.fsum(values) / len(values)
