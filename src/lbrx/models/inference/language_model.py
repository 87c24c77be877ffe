"""A language model that runs: compute logits and generate tokens."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lbrx.errors import UsageError
from lbrx.models.inference.cache import KeyValueCache
from lbrx.models.inference.decoder import normalized, run_block
from lbrx.models.inference.positions import Rotation
from lbrx.models.inference.sampling import Sampler, Sampling
from lbrx.models.inference.spec import ModelSpec
from lbrx.models.inference.weights import Floats, ModelWeights
from lbrx.ops import embedding, linear, softcap

TokenIds = Sequence[int] | npt.NDArray[np.int64]

_BLOCK_TOKENS = 512  # tokens per forward pass
_BLOCK_LOGIT_BYTES = 32 << 20


class LanguageModel:
    """A decoder over mapped weights; see ``open_model``. It works on token ids, not on text.

    It needs memory for the hidden states of a block of tokens and for the KV cache; weights are read from the file
    when needed, and stay in their type.
    """

    def __init__(self, path: Path, spec: ModelSpec, weights: ModelWeights) -> None:
        self.path = path
        self.spec = spec
        self._weights = weights
        self._rotation = Rotation(weights.rope_factors)

    def __repr__(self) -> str:
        spec = self.spec
        return f"LanguageModel({str(self.path)!r}, {spec.family.name}, {len(spec.layers)} layers, hidden {spec.hidden})"

    def new_cache(self, capacity: int = 0) -> KeyValueCache:
        """Return an empty cache; ``capacity`` is the number of tokens before it must grow."""
        return KeyValueCache(self.spec, capacity) if capacity else KeyValueCache(self.spec)

    def logits(self, ids: TokenIds, cache: KeyValueCache | None = None) -> Floats:
        """Return the logits ``[n, vocabulary]`` of what follows each token. With a cache, the tokens follow those in
        it.
        """
        tokens = self.checked_ids(ids)
        result = np.empty((tokens.size, self.spec.vocabulary), np.float32)
        for first, rows in self.logit_blocks(tokens, cache):
            result[first : first + len(rows)] = rows
        return result

    def logit_blocks(
        self, ids: TokenIds, cache: KeyValueCache | None = None, *, first_row: int = 0
    ) -> Iterator[tuple[int, Floats]]:
        """Yield the logits in blocks of rows, each with the index of its first row, to limit memory.

        Rows before ``first_row`` are context only: their logits are not computed.
        """
        tokens = self.checked_ids(ids)
        cache = cache or self.new_cache(tokens.size)
        most_rows = max(1, _BLOCK_LOGIT_BYTES // (4 * self.spec.vocabulary))
        for start in range(0, tokens.size, _BLOCK_TOKENS):
            hidden = self._hidden(tokens[start : start + _BLOCK_TOKENS], cache)
            for first in range(max(first_row - start, 0), len(hidden), most_rows):
                yield start + first, self._output(hidden[first : first + most_rows])

    def generate(
        self,
        ids: TokenIds,
        max_tokens: int = 64,
        sampling: Sampling | None = None,
        *,
        stop_ids: Iterable[int] = (),
    ) -> Iterator[int]:
        """Yield new tokens one by one; a token of ``stop_ids`` ends the text and is not yielded."""
        tokens = self.checked_ids(ids)
        if tokens.size == 0:
            raise UsageError("no tokens to continue from; expected at least one token")
        if max_tokens < 0:
            raise UsageError(f"max_tokens is {max_tokens}; expected 0 or more")
        return self._generated(tokens, max_tokens, Sampler(sampling or Sampling()), frozenset(stop_ids))

    def _generated(
        self, tokens: npt.NDArray[np.int64], max_tokens: int, sampler: Sampler, stop_ids: frozenset[int]
    ) -> Iterator[int]:
        cache = self.new_cache(tokens.size + min(max_tokens, _BLOCK_TOKENS))
        for start in range(0, tokens.size, _BLOCK_TOKENS):
            hidden = self._hidden(tokens[start : start + _BLOCK_TOKENS], cache)
        for _ in range(max_tokens):
            token = sampler.draw(self._output(hidden[-1:])[0])
            if token in stop_ids:
                return
            yield token
            hidden = self._hidden(np.array([token]), cache)

    def checked_ids(self, ids: TokenIds) -> npt.NDArray[np.int64]:
        """Convert tokens to an array; raise if one is not in the vocabulary."""
        array = np.asarray(ids)
        if array.size == 0:
            return np.empty(0, np.int64)
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise UsageError(f"tokens are {array.dtype} of shape {array.shape}; expected a sequence of whole numbers")
        bad = np.flatnonzero((array < 0) | (array >= self.spec.vocabulary))
        if bad.size:
            raise UsageError(
                f"{self.path}: token {int(array[bad[0]])} at position {int(bad[0])}; "
                f"expected 0 to {self.spec.vocabulary - 1}"
            )
        return array.astype(np.int64)

    def layer_inputs(self, ids: TokenIds) -> Iterator[Floats]:
        """Yield the hidden states ``[n, hidden]`` of a text before each layer, starting with the first."""
        tokens = self.checked_ids(ids)
        cache = self.new_cache(tokens.size)
        hidden = self._embedded(tokens)
        for number, weights in enumerate(self._weights.layers):
            yield hidden
            hidden = run_block(hidden, self.spec, number, weights, self._rotation, cache)

    def _hidden(self, tokens: npt.NDArray[np.int64], cache: KeyValueCache) -> Floats:
        """Return the hidden states of new tokens after all layers and the last norm."""
        hidden = self._embedded(tokens)
        for number, weights in enumerate(self._weights.layers):
            hidden = run_block(hidden, self.spec, number, weights, self._rotation, cache)
        cache.advance(len(tokens))
        return normalized(hidden, self._weights.final_norm, self.spec)

    def _embedded(self, tokens: npt.NDArray[np.int64]) -> Floats:
        hidden = embedding(tokens, self._weights.embedding)
        return hidden * np.float32(math.sqrt(self.spec.hidden)) if self.spec.decoder.scales_embeddings else hidden

    def _output(self, hidden: Floats) -> Floats:
        logits = linear(np.ascontiguousarray(hidden), self._weights.output)
        cap = self.spec.final_softcap
        return logits if cap is None else softcap(logits, cap)
