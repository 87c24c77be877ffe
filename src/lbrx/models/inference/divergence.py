"""How much the predictions of a model change when some of its matrices are replaced.

Texts are run layer by layer. For a matrix of a layer, the model runs from this layer on, with the hidden states that
the unchanged model has before it. Memory holds the hidden states of the texts and the logits of some of their tokens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lbrx.models.inference.language_model import LanguageModel, TokenIds
from lbrx.models.inference.layerwise import LayerwiseRun, shares_between_layers
from lbrx.models.inference.weights import Floats, Matrix, ModelWeights
from lbrx.tensors.tensor import Tensor

_LOGIT_BYTES = 128 << 20  # of the unchanged model, which are kept
_MOST_ROWS = 512


class DivergenceRun:
    """Measures Kullback-Leibler divergences from a model on texts, layer after layer.

    >>> from lbrx.demo.models import demo_models
    >>> from lbrx.models.inference.opening import open_model
    >>> model = open_model(demo_models().base)
    >>> run = DivergenceRun(model, [[1, 2, 3, 4]])
    >>> half = Matrix((model.weights.output.weight.to("f32") * 0.5).realize())
    >>> run.with_output(model.weights.output) == 0.0 < run.with_output(half)
    True
    """

    def __init__(self, model: LanguageModel, texts: Sequence[TokenIds]) -> None:
        self._model, self._texts = model, texts
        self._needs_whole_run = shares_between_layers(model)
        self._before = LayerwiseRun(model, texts)
        self._before.start()
        whole = LayerwiseRun(model, texts)
        whole.start()
        whole.run_layers()
        self._last = whole.hidden
        self._rows = _chosen_rows([len(hidden) for hidden in whole.hidden], model.spec.vocabulary)
        self._expected = [_log_shares(model, hidden, rows) for hidden, rows in zip(self._last, self._rows, strict=True)]

    @property
    def next_layer(self) -> int:
        """The layer whose matrices can be replaced now."""
        return self._before.next_layer

    def advance(self) -> None:
        """Go on to the next layer."""
        self._before.run_layer()

    def with_matrices(self, matrices: Mapping[int, Matrix]) -> float:
        """The divergence if matrices of the current layer are replaced, given by the id of those in the model."""
        number, weights = self.next_layer, self._model.weights
        layers = list(weights.layers)
        layers[number] = replaced(layers[number], matrices)
        return self._from(number, dataclasses.replace(weights, layers=layers))

    def with_embedding(self, embedding: Tensor) -> float:
        """The divergence if the embedding is replaced, and the output matrix with it if that is the same."""
        weights = self._model.weights
        output = weights.output
        if self._model.spec.is_tied:
            output = Matrix(embedding, output.bias)
        return self._from(0, dataclasses.replace(weights, embedding=embedding, output=output), from_start=True)

    def with_output(self, output: Matrix) -> float:
        """The divergence if the output matrix is replaced."""
        model = self._changed(dataclasses.replace(self._model.weights, output=output))
        return self._mean(model, self._last)

    def _from(self, layer: int, weights: ModelWeights, *, from_start: bool = False) -> float:
        model = self._changed(weights)
        run = LayerwiseRun(model, self._texts)
        if from_start or self._needs_whole_run:
            run.start()
        else:
            run.resume(layer, self._before.hidden)
        run.run_layers()
        return self._mean(model, run.hidden)

    def _changed(self, weights: ModelWeights) -> LanguageModel:
        return LanguageModel(self._model.path, self._model.spec, weights)

    def _mean(self, model: LanguageModel, hidden: Sequence[Floats]) -> float:
        total = 0.0
        for each, rows, expected in zip(hidden, self._rows, self._expected, strict=True):
            terms = np.exp(expected) * (expected - _log_shares(model, each, rows))
            total += float(np.maximum(terms.sum(axis=1, dtype=np.float64), 0.0).sum())
        return total / max(sum(map(len, self._rows)), 1)


def _chosen_rows(lengths: Sequence[int], vocabulary: int) -> list[list[int]]:
    """The tokens of each text whose predictions are compared: all, or evenly spread ones."""
    most = min(max(_LOGIT_BYTES // (4 * vocabulary), 1), _MOST_ROWS)
    step = max(-(-sum(lengths) // most), 1)
    return [list(range(step - 1, length, step)) or [length - 1] for length in lengths]


def _log_shares(model: LanguageModel, hidden: Floats, rows: Sequence[int]) -> Floats:
    chosen = np.ascontiguousarray(hidden[rows])
    logits = np.concatenate([block for _, block in model.output_blocks(chosen)])
    logits -= logits.max(axis=1, keepdims=True)
    totals = np.exp(logits).sum(axis=1, dtype=np.float64, keepdims=True)
    logits -= np.log(totals).astype(np.float32)
    return logits


def replaced(node: Any, matrices: Mapping[int, Matrix]) -> Any:
    """Records and sequences with other matrices, given by the id of those that they have."""
    if isinstance(node, Matrix):
        return matrices.get(id(node), node)
    if isinstance(node, list | tuple):
        items = [replaced(each, matrices) for each in node]
        if all(new is old for new, old in zip(items, node, strict=True)):
            return node
        return type(node)(*items) if hasattr(node, "_fields") else type(node)(items)
    if isinstance(node, dict):
        return {key: replaced(each, matrices) for key, each in node.items()}
    if not dataclasses.is_dataclass(node) or isinstance(node, type):
        return node
    return _record(node, lambda each: replaced(each, matrices))


def _record(node: Any, change: Callable[[Any], Any]) -> Any:
    values = {field.name: getattr(node, field.name) for field in dataclasses.fields(node)}
    changed = {name: new for name, old in values.items() if (new := change(old)) is not old}
    return dataclasses.replace(node, **changed) if changed else node
