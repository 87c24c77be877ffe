"""Inputs of matrices in a model and in its quantized copy, which runs beside it layer by layer.

The inputs of the copy drift away from those of the model, because earlier layers are quantized. A matrix can make up
for a part of that, from how its inputs x~ differ from the inputs x that it was made for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, replace

import numpy as np
import numpy.typing as npt

from lbrx.base.fast_dataclass import dataclass
from lbrx.models.inference.decoder import run_block
from lbrx.models.inference.language_model import LanguageModel, TokenIds
from lbrx.models.inference.positions import Positions
from lbrx.models.inference.weights import Floats, LayerWeights, Matrix, normalized, watched_rows, watching
from lbrx.ops import matmul
from lbrx.tensors.tensor import Tensor

NameOf = Callable[[Matrix], str | None]
Numbers = npt.NDArray[np.int64]


@dataclass(slots=True)
class DriftGram:
    """Sums over ``count`` inputs x~ of the copy: ``total`` of x~ x~', and ``drift`` of (x - x~) x~'.

    All matrices in ``names`` share them.
    """

    total: Floats
    drift: Floats
    count: int = 0
    names: list[str] = field(default_factory=list)

    @classmethod
    def of_size(cls, size: int, *names: str) -> DriftGram:
        """Return sums of no inputs yet."""
        return cls(np.zeros((size, size), np.float32), np.zeros((size, size), np.float32), 0, list(names))

    def add(self, values: Floats, exact: Floats | None) -> None:
        """Add inputs of the copy [n, size], and those of the model if they are others.

        >>> gram = DriftGram(np.zeros((2, 2), np.float32), np.zeros((2, 2), np.float32))
        >>> gram.add(np.array([[1.0, 2.0]], np.float32), np.array([[2.0, 2.0]], np.float32))
        >>> gram.total.tolist(), gram.drift.tolist()
        ([[1.0, 2.0], [2.0, 4.0]], [[1.0, 2.0], [0.0, 0.0]])
        """
        rows = np.ascontiguousarray(values)
        self.total += matmul(np.ascontiguousarray(rows.T), rows)
        self.count += len(rows)
        if exact is not None:
            self.drift += matmul(np.ascontiguousarray((exact - rows).T), rows)


class DriftRun:
    """Runs a model and its quantized copy on texts, layer by layer; ``embedding`` is that of the copy.

    ``name_of`` returns the name of a matrix, or None for one that does not matter. For each layer, call `next_layer`
    and then `finish_layer` with the quantized weights.
    """

    def __init__(self, model: LanguageModel, texts: Sequence[TokenIds], embedding: Tensor | None = None) -> None:
        self._model = model
        ids = [model.checked_ids(text) for text in texts]
        copy = model if embedding is None else _with_embedding(model, embedding)
        self._positions = [[Positions(each.rotation, 0, text.size) for text in ids] for each in (model, copy)]
        self._hidden = [
            [each.first_hidden(text, at) for text, at in zip(ids, positions, strict=True)]
            for each, positions in zip((model, copy), self._positions, strict=True)
        ]
        self._longest = max(text.size for text in ids)
        self._cache = model.new_cache(self._longest)
        self._is_same, self._number = embedding is None, 0

    def next_layer(
        self, weights: LayerWeights, name_of: NameOf, wanted: Iterable[str], *, is_last: bool = True
    ) -> list[DriftGram]:
        """Run the next layer of the model; returns what the copy has as inputs of the wanted matrices.

        To need less memory, call it several times, each time for some of the matrices; ``is_last`` is false except for
        the last time.
        """
        sums, names = _Sums(), frozenset(wanted)
        for index in range(len(self._hidden[0])):
            exact = _Inputs(name_of, names)
            with watching(exact):
                hidden = self._run(0, index, weights)
            if names and not self._is_same:
                drifted = _Inputs(name_of, names)
                with watching(drifted):
                    self._run(1, index, weights)
                sums.add(drifted, exact)
            else:
                sums.add(exact, None)
            if is_last:
                self._hidden[0][index] = hidden
        return sums.grams

    def finish_layer(self, weights: LayerWeights) -> None:
        """Run the layer of the copy."""
        for index in range(len(self._hidden[1])):
            self._hidden[1][index] = self._run(1, index, weights)
        self._number += 1
        self._cache = self._model.new_cache(self._longest)  # a new one holds no other layer's keys
        self._is_same = False

    def output_gram(self, name: str) -> DriftGram:
        """Return what the copy has as inputs of the output matrix, after the last layer."""
        norm = self._model.weights.final_norm
        gram = DriftGram.of_size(self._model.spec.hidden, name)
        for exact, drifted in zip(*self._hidden, strict=True):
            gram.add(normalized(drifted, norm), None if self._is_same else normalized(exact, norm))
        return gram

    def _run(self, which: int, index: int, weights: LayerWeights) -> Floats:
        self._cache.restart(self._number)
        hidden, at = self._hidden[which][index], self._positions[which][index]
        return run_block(hidden, self._model.spec, self._number, weights, at, self._cache)


def _with_embedding(model: LanguageModel, embedding: Tensor) -> LanguageModel:
    return LanguageModel(model.path, model.spec, replace(model.weights, embedding=embedding))


@dataclass(slots=True)
class _Input:
    """Rows that matrices are multiplied with; ``tokens`` are their numbers in the text, or None for all."""

    names: list[str]
    rows: Floats
    tokens: Numbers | None

    def of_tokens(self, other: _Input) -> Floats | None:
        """The rows for the tokens of another input; those that only the other one has are taken from it.

        >>> mine = _Input([], np.array([[1.0], [2.0]], np.float32), np.array([0, 3]))
        >>> other = _Input([], np.array([[7.0], [8.0]], np.float32), np.array([3, 4]))
        >>> mine.of_tokens(other).tolist()
        [[2.0], [8.0]]
        """
        if self.tokens is None or other.tokens is None:
            return self.rows if self.rows.shape == other.rows.shape else None
        _, own, its = np.intersect1d(self.tokens, other.tokens, assume_unique=True, return_indices=True)
        found = other.rows.copy()
        found[its] = self.rows[own]
        return found


class _Inputs:
    """The inputs of matrices of one text: arrays, and which matrices have each as input."""

    def __init__(self, name_of: NameOf, wanted: frozenset[str]) -> None:
        self._name_of, self._wanted = name_of, wanted
        self.arrays: list[_Input] = []

    def __call__(self, matrix: Matrix, values: Floats) -> None:
        name = self._name_of(matrix)
        if name is None or name not in self._wanted:
            return
        rows = values.reshape(-1, values.shape[-1])
        if self.arrays and _is_same(self.arrays[-1].rows, rows):
            self.arrays[-1].names.append(name)
        else:
            self.arrays.append(_Input([name], rows, watched_rows()))

    def by_name(self) -> dict[str, _Input]:
        """The inputs by the first matrix that has them."""
        return {each.names[0]: each for each in self.arrays}


def _is_same(left: Floats, right: Floats) -> bool:
    return left.shape == right.shape and left.__array_interface__["data"] == right.__array_interface__["data"]


class _Sums:
    """Gram matrices by the first matrix that has them."""

    def __init__(self) -> None:
        self.grams: list[DriftGram] = []
        self._of_name: dict[str, DriftGram] = {}

    def add(self, inputs: _Inputs, exact: _Inputs | None) -> None:
        """Add the inputs of one text; those of the model are left out where it took another way."""
        others = {} if exact is None else exact.by_name()
        for each in inputs.arrays:
            gram = self._of_name.get(each.names[0])
            if gram is None:
                gram = DriftGram.of_size(each.rows.shape[1])
                self.grams.append(gram)
            for name in each.names:
                if name not in self._of_name:
                    self._of_name[name] = gram
                    gram.names.append(name)
            other = others.get(each.names[0])
            gram.add(each.rows, None if other is None else other.of_tokens(each))
