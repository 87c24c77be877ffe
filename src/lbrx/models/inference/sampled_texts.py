"""Texts that a model writes by itself, many side by side: each matrix is read once for one token of all texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from lbrx.errors import UsageError
from lbrx.models.architectures.records import GroupedAttention
from lbrx.models.inference.cache import KeyValueCache
from lbrx.models.inference.decoder import run_block
from lbrx.models.inference.language_model import LanguageModel
from lbrx.models.inference.layerwise import shares_between_layers
from lbrx.models.inference.positions import MakeTables, Positions, Rotation
from lbrx.models.inference.sampling import Sampling
from lbrx.models.inference.weights import Floats

Ids = npt.NDArray[np.int64]
_DRAW_BLOCK = 1024  # shares that are cumulated one by one
_MOST_EMPTY_ATTEMPTS = 16  # to continue a text: then its prompt is repeated


class _SamePositions(Positions):
    """One position for a token of each of several texts."""

    def __init__(self, rotation: Rotation, first: int, sequences: int) -> None:
        super().__init__(rotation, first, 1)
        self._sequences = sequences

    def tables(self, key: object, make: MakeTables) -> tuple[Floats, ...]:
        return super().tables(key, lambda *given: tuple(self._repeated(table) for table in make(*given)))

    def _repeated(self, table: Floats) -> Floats:
        return np.repeat(table, self._sequences, axis=0)


def runs_side_by_side(model: LanguageModel) -> bool:
    """Whether layers remember nothing but keys and values of their own."""
    mixers = [layer.mixer for layer in model.spec.layers]
    return all(isinstance(mixer, GroupedAttention) for mixer in mixers) and not shares_between_layers(model)


def sampled_texts(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]] | Ids,
    tokens: int,
    *,
    seed: int = 0,
    forbidden: Iterable[int] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Ids:
    """Continue prompts to ``tokens`` tokens each, drawn with the probabilities of the model.

    ``forbidden`` are tokens that are never drawn, such as the end of a text. Text b depends on the model, its prompt,
    the seed and b only. ``progress`` is called with the number of tokens of each text so far and the total.

    >>> from lbrx.demo.models import demo_models
    >>> from lbrx.models.inference import open_model
    >>> texts = sampled_texts(open_model(demo_models().base), [[5, 6], [7]], 10)
    >>> texts.shape, texts[0, :2].tolist(), texts[1, :1].tolist()
    ((2, 10), [5, 6], [7])
    """
    lengths = np.array([min(len(prompt), tokens) for prompt in prompts])
    if not lengths.all():
        raise UsageError("a prompt without tokens; expected at least one token")
    draw = _Draws(len(prompts), seed, forbidden)
    out = np.empty((len(prompts), tokens), np.int64)
    for text, prompt, length in zip(out, prompts, lengths, strict=True):
        text[:length] = prompt[:length]
    if not runs_side_by_side(model):
        for number, text in enumerate(out):
            if progress is not None:
                progress(number * tokens // len(out), tokens)
            _continue_alone(model, text, int(lengths[number]), [seed, number], draw.forbidden)
        return out
    cache = KeyValueCache(model.spec, tokens, sequences=len(out))
    for position in range(tokens - 1):
        if progress is not None:
            progress(position, tokens)
        hidden = _hidden(model, out[:, position], position, cache)
        writing = np.flatnonzero(lengths <= position + 1)
        if writing.size:
            for first, logits in model.output_blocks(hidden[writing]):
                texts = writing[first : first + len(logits)]
                out[texts, position + 1] = draw(texts, logits)
    return out


def _hidden(model: LanguageModel, ids: Ids, position: int, cache: KeyValueCache) -> Floats:
    """The hidden states of one token of each text after all layers."""
    positions = _SamePositions(model.rotation, position, len(ids))
    hidden = model.first_hidden(ids, positions)
    for number in range(len(model.spec.layers)):
        hidden = run_block(hidden, model.spec, number, model.layer_weights(number), positions, cache)
    cache.advance(1)
    return hidden


def _continue_alone(model: LanguageModel, out: Ids, length: int, seed: list[int], forbidden: list[int]) -> None:
    """Continue one text. Where the model would draw a forbidden token, the prompt is continued anew, another way."""
    random = np.random.Generator(np.random.Philox(key=seed))
    done, attempts_left = length, _MOST_EMPTY_ATTEMPTS
    while done < len(out) and attempts_left:
        before, sampling = done, Sampling(1.0, seed=int(random.integers(1 << 31)))
        for token in model.generate(out[:length], len(out) - done, sampling, stop_ids=forbidden):
            out[done] = token
            done += 1
        if done == before:
            attempts_left -= 1
    out[done:] = np.resize(out[:length], len(out) - done)


class _Draws:
    """Draws tokens of several texts, each with random numbers of its own."""

    def __init__(self, texts: int, seed: int, forbidden: Iterable[int]) -> None:
        self._random = [np.random.Generator(np.random.Philox(key=[seed, number])) for number in range(texts)]
        self.forbidden = list(forbidden)

    def __call__(self, texts: Ids, logits: Floats) -> Ids:
        """Draw a token for each of these texts."""
        drawn = np.empty(len(texts), np.int64)
        for row, (text, values) in enumerate(zip(texts, logits, strict=True)):
            values[self.forbidden] = -np.inf
            drawn[row] = _drawn(np.exp(values - values.max()), self._random[text].random())
        return drawn


def _drawn(shares: Floats, point: float) -> int:
    """The index at a point, from 0 to 1, of the cumulated shares: of blocks first, and then in one block."""
    size = len(shares)
    starts = np.arange(0, size, _DRAW_BLOCK)
    ends = np.cumsum(np.add.reduceat(shares, starts, dtype=np.float64))
    block = min(int(np.searchsorted(ends, point * ends[-1], side="right")), len(ends) - 1)
    before = ends[block - 1] if block else 0.0
    inner = before + np.cumsum(shares[starts[block] : starts[block] + _DRAW_BLOCK], dtype=np.float64)
    place = min(int(np.searchsorted(inner, point * ends[-1], side="right")), len(inner) - 1)
    return int(starts[block]) + place
