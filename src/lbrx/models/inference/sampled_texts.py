"""Texts that a model writes by itself, many side by side: each matrix is read once for one token of all texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable

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
    prompts: Ids,
    tokens: int,
    *,
    seed: int = 0,
    forbidden: Iterable[int] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Ids:
    """Continue prompts [texts, length] to ``tokens`` tokens each, drawn with the probabilities of the model.

    ``forbidden`` are tokens that are never drawn, such as the end of a text. Text b depends on the model, its prompt,
    the seed and b only. ``progress`` is called with the number of tokens of each text so far and the total.

    >>> from lbrx.demo.models import demo_models
    >>> from lbrx.models.inference import open_model
    >>> texts = sampled_texts(open_model(demo_models().base), np.array([[5, 6], [7, 8]]), 10)
    >>> texts.shape, texts[:, :2].tolist()
    ((2, 10), [[5, 6], [7, 8]])
    """
    if prompts.ndim != 2 or not prompts.shape[1]:
        raise UsageError(f"prompts of shape {prompts.shape}; expected [texts, tokens] with at least one token")
    draw = _Draws(len(prompts), seed, forbidden)
    out = np.empty((len(prompts), tokens), np.int64)
    length = min(prompts.shape[1], tokens)
    out[:, :length] = prompts[:, :length]
    if not runs_side_by_side(model):
        for number, text in enumerate(out):
            if progress is not None:
                progress(number * tokens // len(out), tokens)
            _continue_alone(model, text, length, [seed, number], draw.forbidden)
        return out
    cache = KeyValueCache(model.spec, tokens, sequences=len(out))
    for position in range(tokens - 1):
        if progress is not None:
            progress(position, tokens)
        hidden = _hidden(model, out[:, position], position, cache)
        if position + 1 >= length:
            for first, logits in model.output_blocks(hidden):
                out[first : first + len(logits), position + 1] = draw(first, logits)
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

    def __call__(self, first: int, logits: Floats) -> Ids:
        shares = logits.astype(np.float64)
        shares[:, self.forbidden] = -np.inf
        shares = np.cumsum(np.exp(shares - shares.max(axis=1, keepdims=True)), axis=1)
        points = [random.random() for random in self._random[first : first + len(logits)]]
        found = [np.searchsorted(row, point * row[-1], side="right") for row, point in zip(shares, points, strict=True)]
        drawn: Ids = np.minimum(found, logits.shape[1] - 1).astype(np.int64)
        return drawn
