"""Inputs of matrices in a model and in its quantized copy, which runs beside it layer by layer.

The inputs of the copy drift away from those of the model, because earlier layers are quantized. A matrix can make up
for a part of that, from how its inputs x~ differ from the inputs x that it was made for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field

import numpy as np

from lbrx.base.fast_dataclass import dataclass
from lbrx.models.inference.decoder import run_block
from lbrx.models.inference.language_model import LanguageModel, TokenIds
from lbrx.models.inference.positions import Positions
from lbrx.models.inference.weights import Floats, LayerWeights, Matrix, watching
from lbrx.ops import matmul

NameOf = Callable[[Matrix], str | None]


@dataclass(slots=True)
class DriftGram:
    """Sums over ``count`` inputs x~ of the copy: ``total`` of x~ x~', and ``drift`` of (x - x~) x~'.

    All matrices in ``names`` share them.
    """

    total: Floats
    drift: Floats
    count: int = 0
    names: list[str] = field(default_factory=list)

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
    """Runs a model and its quantized copy on texts, layer by layer; both have the same embeddings.

    ``name_of`` returns the name of a matrix, or None for one that does not matter. For each layer, call `next_layer`
    and then `finish_layer` with the quantized weights.
    """

    def __init__(self, model: LanguageModel, texts: Sequence[TokenIds]) -> None:
        self._model = model
        ids = [model.checked_ids(text) for text in texts]
        self._positions = [[Positions(model.rotation, 0, text.size) for text in ids] for _ in range(2)]
        self._hidden = [
            [model.first_hidden(text, at) for text, at in zip(ids, positions, strict=True)]
            for positions in self._positions
        ]
        self._cache = model.new_cache(max(text.size for text in ids))
        self._number = 0

    def next_layer(self, weights: LayerWeights, name_of: NameOf, wanted: Iterable[str]) -> list[DriftGram]:
        """Run the next layer of the model; returns what the copy has as inputs of the wanted matrices."""
        sums, names = _Sums(), frozenset(wanted)
        for index in range(len(self._hidden[0])):
            exact = _Inputs(name_of, names)
            with watching(exact):
                hidden = self._run(0, index, weights)
            if names and self._number:
                drifted = _Inputs(name_of, names)
                with watching(drifted):
                    self._run(1, index, weights)
                sums.add(drifted, exact)
            else:
                sums.add(exact, None)
            self._hidden[0][index] = hidden
        return sums.grams

    def finish_layer(self, weights: LayerWeights) -> None:
        """Run the layer of the copy."""
        for index in range(len(self._hidden[1])):
            self._hidden[1][index] = self._run(1, index, weights)
        self._number += 1

    def _run(self, which: int, index: int, weights: LayerWeights) -> Floats:
        self._cache.restart(self._number)
        hidden, at = self._hidden[which][index], self._positions[which][index]
        return run_block(hidden, self._model.spec, self._number, weights, at, self._cache)


class _Inputs:
    """The inputs of matrices of one text: arrays, and which matrices have each as input."""

    def __init__(self, name_of: NameOf, wanted: frozenset[str]) -> None:
        self._name_of, self._wanted = name_of, wanted
        self.arrays: list[tuple[list[str], Floats]] = []

    def __call__(self, matrix: Matrix, values: Floats) -> None:
        name = self._name_of(matrix)
        if name is None or name not in self._wanted:
            return
        rows = values.reshape(-1, values.shape[-1])
        if self.arrays and _is_same(self.arrays[-1][1], rows):
            self.arrays[-1][0].append(name)
        else:
            self.arrays.append(([name], rows))


def _is_same(left: Floats, right: Floats) -> bool:
    return left.shape == right.shape and left.__array_interface__["data"] == right.__array_interface__["data"]


class _Sums:
    """Gram matrices by the first matrix that has them."""

    def __init__(self) -> None:
        self.grams: list[DriftGram] = []
        self._of_name: dict[str, DriftGram] = {}

    def add(self, inputs: _Inputs, exact: _Inputs | None) -> None:
        """Add the inputs of one text; those of the model are left out where it took another way."""
        others = [] if exact is None else exact.arrays
        is_aligned = [(names, rows.shape) for names, rows in others] == [(names, a.shape) for names, a in inputs.arrays]
        for number, (names, rows) in enumerate(inputs.arrays):
            gram = self._of_name.get(names[0])
            if gram is None:
                size = rows.shape[1]
                gram = DriftGram(np.zeros((size, size), np.float32), np.zeros((size, size), np.float32))
                self.grams.append(gram)
            for name in names:
                if name not in self._of_name:
                    self._of_name[name] = gram
                    gram.names.append(name)
            gram.add(rows, others[number][1] if is_aligned else None)
