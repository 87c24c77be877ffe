"""Gram matrices of the inputs of matrices: a model is run on texts layer by layer.

The Gram matrix of inputs x is the sum of x x'. Memory holds the hidden states of the texts, one layer, and the Gram
matrices of its inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field

import numpy as np

from lbrx.base.fast_dataclass import dataclass
from lbrx.models.inference.language_model import LanguageModel, TokenIds
from lbrx.models.inference.layerwise import LayerwiseRun
from lbrx.models.inference.weights import Floats, Matrix, watching
from lbrx.ops import matmul


@dataclass(slots=True)
class Gram:
    """The sum of x x' over ``count`` inputs x, which all matrices in ``names`` share."""

    total: Floats
    count: int = 0
    names: list[str] = field(default_factory=list)

    def add(self, values: Floats) -> None:
        """Add the rows of an array of any shape.

        >>> gram = Gram(np.zeros((2, 2), np.float32))
        >>> gram.add(np.array([[1.0, 2.0]], np.float32))
        >>> gram.total.tolist(), gram.count
        ([[1.0, 2.0], [2.0, 4.0]], 1)
        """
        rows = np.ascontiguousarray(values.reshape(-1, values.shape[-1]))
        self.total += matmul(np.ascontiguousarray(rows.T), rows)
        self.count += len(rows)


class LayerGrams:
    """Runs the layers of a model one after the other on texts.

    ``name_of`` returns the name of a matrix, or None for one that does not matter. ``before`` is the number of a layer
    and the hidden states before it, to continue from; not if layers share more than those (`shares_between_layers`).
    """

    def __init__(
        self,
        model: LanguageModel,
        texts: Sequence[TokenIds],
        name_of: Callable[[Matrix], str | None],
        before: tuple[int, Sequence[Floats]] | None = None,
    ) -> None:
        self._name_of = name_of
        self._run = LayerwiseRun(model, texts)
        if before is None:
            self._run.start()
        else:
            self._run.resume(*before)

    @property
    def hidden(self) -> Sequence[Floats]:
        """The hidden states of the texts before the next layer."""
        return self._run.hidden

    def next_layer(self, wanted: Iterable[str]) -> list[Gram]:
        """Run the next layer; returns the Gram matrices of the inputs of the wanted matrices."""
        watcher = _Watcher(self._name_of, frozenset(wanted))
        with watching(watcher):
            self._run.run_layer()
        return watcher.grams


class _Watcher:
    """Sums up inputs; matrices that are multiplied with the same array share a Gram matrix."""

    def __init__(self, name_of: Callable[[Matrix], str | None], wanted: frozenset[str]) -> None:
        self._name_of, self._wanted = name_of, wanted
        self.grams: list[Gram] = []
        self._of_name: dict[str, Gram] = {}
        self._latest: tuple[Floats, Gram] | None = None

    def __call__(self, matrix: Matrix, values: Floats) -> None:
        name = self._name_of(matrix)
        if name is None or name not in self._wanted:
            return
        gram = self._of_name.get(name)
        if self._latest is not None and self._latest[0] is values:
            if gram is None:
                gram = self._of_name[name] = self._latest[1]
                gram.names.append(name)
            return
        if gram is None:
            size = values.shape[-1]
            gram = self._of_name[name] = Gram(np.zeros((size, size), np.float32), 0, [name])
            self.grams.append(gram)
        gram.add(values)
        self._latest = values, gram
