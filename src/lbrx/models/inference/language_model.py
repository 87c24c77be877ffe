"""A language model that runs: compute logits and generate tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from weakref import finalize

import numpy as np
import numpy.typing as npt

from lbrx.base.system import available_bytes
from lbrx.errors import UsageError
from lbrx.memory.budget import budget
from lbrx.memory.resident import resident_window
from lbrx.models.architectures.records import LearnedPositions
from lbrx.models.inference.cache import KeyValueCache
from lbrx.models.inference.decoder import run_block
from lbrx.models.inference.layer_inputs import share_inputs
from lbrx.models.inference.passes import Compute, Passes
from lbrx.models.inference.positions import Positions, Rotation
from lbrx.models.inference.sampling import Sampler, Sampling
from lbrx.models.inference.spec import ModelSpec
from lbrx.models.inference.weights import Floats, LayerWeights, Matrix, ModelWeights, normalized, times, watching
from lbrx.ops import embedding, softcap

TokenIds = Sequence[int] | npt.NDArray[np.int64]

_BLOCK_TOKENS = 512  # tokens per forward pass
_BLOCK_LOGIT_BYTES = 32 << 20
_PANEL_ROWS = 32


class LanguageModel:
    """A decoder over mapped weights; see ``open_model``. It works on token ids, not on text.

    It needs memory for the hidden states of a block of tokens and for the KV cache; weights are read from the file
    when needed, and stay in their type.
    """

    def __init__(self, path: Path, spec: ModelSpec, weights: ModelWeights) -> None:
        self.path = path
        self.spec = spec
        self._weights = weights
        self.rotation = Rotation(weights.rope_factors)
        self._passes = Passes(self.rotation)

    def __repr__(self) -> str:
        spec = self.spec
        return f"LanguageModel({str(self.path)!r}, {spec.family.name}, {len(spec.layers)} layers, hidden {spec.hidden})"

    def keep_mapped(self, nbytes: int) -> None:
        """Let so many bytes of weights stay mapped while this model exists, if they fit into a quarter of the free
        memory and into the memory limit. Otherwise each text maps its pages anew.
        """
        if nbytes <= min(available_bytes() // 4, budget().limit_bytes):
            resident_window.widen(2 * nbytes)
            finalize(self, resident_window.widen, -2 * nbytes)

    def new_cache(self, capacity: int = 0, kv_type: str = "f32") -> KeyValueCache:
        """Return an empty cache; ``capacity`` is the number of tokens before it must grow.

        ``kv_type`` is the type of keys and values: f32, f16 or bf16.
        """
        return KeyValueCache(self.spec, capacity, kv_type)

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
        most_rows = self._most_rows
        for start in range(0, tokens.size, _BLOCK_TOKENS):
            block = tokens[start : start + _BLOCK_TOKENS]
            if block.size == 1 and start >= first_row:
                yield start, self._next(block, cache)
                continue
            hidden = self._hidden(block, cache)
            for first in range(max(first_row - start, 0), len(hidden), most_rows):
                yield start + first, self._output(hidden[first : first + most_rows])

    def output_blocks(self, hidden: Floats, first_row: int = 0) -> Iterator[tuple[int, Floats]]:
        """Yield the logits for the outputs of the last layer in blocks of rows, as ``logit_blocks`` does."""
        normed = normalized(hidden, self._weights.final_norm)
        most_rows = self._most_rows
        for first in range(first_row, len(normed), most_rows):
            yield first, self._output(normed[first : first + most_rows])

    @property
    def _most_rows(self) -> int:
        """Rows of logits that are computed together: few enough for the memory, and whole panels of products."""
        rows = _BLOCK_LOGIT_BYTES // (4 * self.spec.vocabulary)
        return rows // _PANEL_ROWS * _PANEL_ROWS or max(rows, 1)

    def layer_weights(self, number: int) -> LayerWeights:
        """Return the weights of a layer."""
        return self._weights.layers[number]

    def generate(
        self,
        ids: TokenIds,
        max_tokens: int = 64,
        sampling: Sampling | None = None,
        *,
        stop_ids: Iterable[int] = (),
        kv_type: str = "f32",
        cache: KeyValueCache | None = None,
        before: Iterable[int] = (),
    ) -> Iterator[int]:
        """Yield new tokens one by one; a token of ``stop_ids`` ends the text and is not yielded.

        ``kv_type`` is the type of the KV cache: f32, f16 or bf16. With a ``cache``, the tokens follow those in it, and
        it remembers all new tokens except the last. ``before`` are tokens that a repetition penalty counts besides
        ``ids``.
        """
        tokens = self.checked_ids(ids)
        if tokens.size == 0:
            raise UsageError("no tokens to continue from; expected at least one token")
        if max_tokens < 0:
            raise UsageError(f"max_tokens is {max_tokens}; expected 0 or more")
        if cache is None:
            cache = self.new_cache(tokens.size + min(max_tokens, _BLOCK_TOKENS), kv_type)
        sampler = Sampler(sampling or Sampling())
        sampler.see(before)
        sampler.see(tokens)
        return self._generated(tokens, max_tokens, sampler, frozenset(stop_ids), cache)

    def _generated(
        self,
        tokens: npt.NDArray[np.int64],
        max_tokens: int,
        sampler: Sampler,
        stop_ids: frozenset[int],
        cache: KeyValueCache,
    ) -> Iterator[int]:
        if max_tokens == 0:
            return
        for start in range(0, tokens.size, _BLOCK_TOKENS):
            hidden = self._hidden(tokens[start : start + _BLOCK_TOKENS], cache)
        logits = self._output(hidden[-1:])
        for number in range(max_tokens):
            token = sampler.draw(logits[0])
            if token in stop_ids:
                return
            yield token
            if number < max_tokens - 1:
                logits = self._next(np.array([token]), cache)

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
        positions = Positions(self.rotation, 0, tokens.size)
        hidden = self.first_hidden(tokens, positions)
        for number, weights in enumerate(self._weights.layers):
            yield hidden
            hidden = run_block(hidden, self.spec, number, weights, positions, cache)

    def first_hidden(self, tokens: npt.NDArray[np.int64], positions: Positions) -> Floats:
        """Return the hidden states of tokens before the first layer."""
        return self._first(self._embedded(tokens), positions)

    @property
    def weights(self) -> ModelWeights:
        """The matrices and small vectors, for functions that watch them."""
        return self._weights

    def run_watched(self, ids: TokenIds, watcher: Callable[[Matrix, Floats], None], *, with_output: bool) -> None:
        """Run a text through all layers, one operation after the other; see `lbrx.models.inference.weights.watching`.

        ``with_output`` shows the output matrix as well; logits are not computed.
        """
        tokens = self.checked_ids(ids)
        with watching(watcher):
            cache = self.new_cache(tokens.size)
            hidden = self._hidden_of(self._embedded(tokens), Positions(self.rotation, 0, tokens.size), cache)
            if with_output:
                watcher(self._weights.output, hidden)

    def _hidden(self, tokens: npt.NDArray[np.int64], cache: KeyValueCache) -> Floats:
        """Return the hidden states of new tokens after all layers and the last norm."""
        return self._run(tokens, cache, "hidden", self._hidden_of)

    def _next(self, tokens: npt.NDArray[np.int64], cache: KeyValueCache) -> Floats:
        """Return the logits of what follows a few new tokens."""
        return self._run(tokens, cache, "logits", lambda *given: self._output(self._hidden_of(*given)))

    def _run(self, tokens: npt.NDArray[np.int64], cache: KeyValueCache, name: str, compute: Compute) -> Floats:
        embedded = self._embedded(tokens)
        with self._passes.found(embedded, cache, name, compute) as recorded:
            if recorded is not None:
                result = recorded.run(embedded, cache).copy()  # before another thread may run it
            else:
                result = compute(embedded, Positions(self.rotation, cache.length, len(tokens)), cache)
        cache.advance(len(tokens))
        return result

    def _hidden_of(self, embedded: Floats, positions: Positions, cache: KeyValueCache) -> Floats:
        hidden = self._first(embedded, positions)
        for number, weights in enumerate(self._weights.layers):
            hidden = run_block(hidden, self.spec, number, weights, positions, cache)
        return normalized(hidden, self._weights.final_norm)

    def _embedded(self, tokens: npt.NDArray[np.int64]) -> Floats:
        """Return the rows of the tokens; behind them are those of the inputs of all layers, if there are any."""
        rows, inputs = embedding(tokens, self._weights.embedding), self._weights.layer_inputs
        return rows if inputs is None else np.concatenate([rows, embedding(tokens, inputs.table)], axis=1)

    def _first(self, embedded: Floats, positions: Positions) -> Floats:
        """Return the hidden states before the first layer."""
        scale, norm = self.spec.embedding_scale, self._weights.embedding_norm
        inputs = self._weights.layer_inputs
        looked_up = None if inputs is None else embedded[:, self.spec.hidden :]
        embedded = embedded if inputs is None else embedded[:, : self.spec.hidden]
        hidden = embedded if scale is None else embedded * np.float32(scale)
        if inputs is not None and looked_up is not None:
            share_inputs(hidden, looked_up, inputs, positions.shared)
        if self._weights.positions is not None:
            hidden = hidden + positions.tables("learned", self._learned_positions)[0]
        return hidden if norm is None else normalized(hidden, norm)

    def _learned_positions(self, first: int, tokens: int) -> tuple[Floats]:
        learned, table = self.spec.decoder.positions, self._weights.positions
        assert isinstance(learned, LearnedPositions)
        assert table is not None
        numbers = np.arange(first, first + tokens) + learned.offset
        if first + tokens + learned.offset > table.shape[0]:
            most = table.shape[0] - learned.offset
            raise UsageError(f"{self.path}: a text has {first + tokens} tokens or more; expected at most {most}")
        return (embedding(numbers, table),)

    def _output(self, hidden: Floats) -> Floats:
        logits = times(hidden, self._weights.output)
        scale, cap = self.spec.logit_scale, self.spec.final_softcap
        if scale is not None:
            logits = logits * np.float32(scale)
        return logits if cap is None else softcap(logits, cap)
