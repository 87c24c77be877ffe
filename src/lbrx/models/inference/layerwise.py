"""Run several texts through a model layer by layer, with weights that exist only while their layer runs.

The weights may be expressions, such as those of a merge that is never written. Results have the bits that
`LanguageModel` computes from a file with these weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from lbrx.models.architectures.records import GroupedAttention
from lbrx.models.inference.decoder import run_block
from lbrx.models.inference.language_model import LanguageModel, TokenIds
from lbrx.models.inference.positions import Positions
from lbrx.models.inference.spec import ModelSpec
from lbrx.models.inference.weights import (
    Floats,
    LayerWeights,
    Reader,
    TensorSource,
    read_layer,
    read_weights_outside_layers,
)


class LayersOnDemand(Sequence[LayerWeights]):
    """The weights of layers, read anew whenever one is asked for."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def __len__(self) -> int:
        return len(self._reader.spec.layers)

    def __getitem__(self, number: int) -> LayerWeights:  # type: ignore[override]
        if not 0 <= number < len(self):
            raise IndexError(number)
        return read_layer(self._reader, self._reader.spec.layers[number])


def model_on_demand(path: Path, spec: ModelSpec, source: TensorSource) -> LanguageModel:
    """Return a model that reads a layer when it runs it. Embedding, head and last norm are read now."""
    reader = Reader(source, spec)
    return LanguageModel(path, spec, read_weights_outside_layers(reader, LayersOnDemand(reader)))


def shares_between_layers(model: LanguageModel) -> bool:
    """Whether layers need more of earlier ones than their output: keys and values, or inputs from the embedding."""
    config = model.spec.config
    return model.weights.layer_inputs is not None or any(
        isinstance(layer.mixer, GroupedAttention) and config.evaluate(layer.mixer.shares_keys, **layer.local)
        for layer in model.spec.layers
    )


class LayerwiseRun:
    """Texts on their way through the layers of a model: hidden states before layer ``next_layer``."""

    def __init__(self, model: LanguageModel, texts: Sequence[TokenIds]) -> None:
        self._model = model
        self._texts = [model.checked_ids(ids) for ids in texts]
        self._positions = [Positions(model.rotation, 0, ids.size) for ids in self._texts]
        self.next_layer = 0
        self.hidden: list[Floats] = []

    def start(self) -> None:
        """Look up the embeddings of all texts."""
        pairs = zip(self._texts, self._positions, strict=True)
        self.hidden = [self._model.first_hidden(ids, positions) for ids, positions in pairs]

    def resume(self, layer: int, hidden: Sequence[Floats]) -> None:
        """Continue before a layer with known hidden states; not if `shares_between_layers`."""
        self.next_layer, self.hidden = layer, list(hidden)

    def run_layers(self, after_layer: Callable[[int, list[Floats]], None] | None = None) -> None:
        """Run the remaining layers. ``after_layer`` gets the number of each layer and its outputs."""
        for number in range(self.next_layer, len(self._model.spec.layers)):
            self.run_layer()
            if after_layer is not None:
                after_layer(number, self.hidden)

    def run_layer(self) -> None:
        """Run one layer on all texts."""
        number, spec = self.next_layer, self._model.spec
        weights = self._model.layer_weights(number)
        cache = self._model.new_cache(max(ids.size for ids in self._texts))  # a new one holds no other layer's keys
        for index, positions in enumerate(self._positions):
            cache.restart(number)
            self.hidden[index] = run_block(self.hidden[index], spec, number, weights, positions, cache)
        self.next_layer = number + 1

    def logit_blocks(self, text: int, first_row: int = 0) -> Iterator[tuple[int, Floats]]:
        """Yield the logits of a text in blocks of rows, each with the index of its first row."""
        return self._model.output_blocks(self.hidden[text], first_row)
