"""Blocks whose errors are small for the inputs that a model sees: measured and encoded layer by layer.

A layer is run on all chunks of the text, in the model and in a copy whose earlier layers are encoded already. The Gram
matrices of the inputs in the copy are summed up, and how they differ from those in the model. The tensors of the layer
are encoded with them, and their blocks are stored in a folder beside the output. Memory holds the hidden states of the
text twice, and one layer. A tensor whose blocks are stored is not encoded again.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.base.atomic_write import write_atomically
from lbrx.errors import UsageError
from lbrx.files.output.contents import PlannedTensor
from lbrx.files.output.options import CountCallback
from lbrx.files.output.plan import model_state
from lbrx.jobs.imatrix.imatrix import DEFAULT_CONTEXT, calibration_chunks
from lbrx.jobs.quantize.coded import Quantization
from lbrx.jobs.quantize.feedback_encoding import PieceEncoder, encoded_here, known_from
from lbrx.jobs.quantize.feedback_experts import (
    MOST_GRAM_BYTES,
    Inputs,
    expert_inputs,
    in_groups,
    known_inputs,
    unused_warning,
)
from lbrx.jobs.quantize.feedback_pieces import (
    Piece,
    add_warning,
    inner_labels,
    is_stored,
    join_items,
    layer_labels,
    router_label,
    store_piece,
    stored_values,
)
from lbrx.jobs.quantize.feedback_wanted import Wanted, before_coding
from lbrx.jobs.quantize.group_codes import encode_rows
from lbrx.models.inference import LanguageModel
from lbrx.models.inference.drift import DriftGram, DriftRun
from lbrx.models.inference.layerwise import LayerwiseRun
from lbrx.models.inference.weights import LayerWeights, Reader, TensorSource, normalized, read_layer
from lbrx.models.tokenizers.text import open_tokenizer
from lbrx.ops.feedback_factors import DEFAULT_SHRINK
from lbrx.settings import arithmetic_version
from lbrx.tensors.tensor import Tensor

_DRIFT_SHARE = 0.3  # of the drift of inputs that a matrix makes up for
_IDENTITY_NAME = "identity.json"


def folder_identity(folder: Path) -> Any:
    """What the blocks of a folder depend on."""
    return json.loads((folder / _IDENTITY_NAME).read_text())


def feedback_folder(out: Path) -> Path:
    """The folder beside an output."""
    return out.with_name(f".{out.name}.feedback")


def encode_layers(
    source: Path,
    out: Path,
    quantization: Quantization,
    texts: Sequence[Path],
    shrink: float = DEFAULT_SHRINK,
    progress: CountCallback | None = None,
    encoder: PieceEncoder = encoded_here,
) -> Path:
    """Encode the matrices of all layers of a model, and the output matrix, for texts; returns the folder of the blocks.

    ``quantization`` has the type of each tensor. Unchanged tensors are left out.
    ``encoder`` encodes matrices whose sums of inputs are known: on this machine, or on a cluster.
    """
    check_shrink(shrink)
    model, sources = before_coding(source, quantization)
    context = min(DEFAULT_CONTEXT, model.spec.context_length)
    chunks = calibration_chunks(model, open_tokenizer(source), texts, context, None)
    folder = _folder(source, out, chunks, shrink, quantization)
    wanted = Wanted(model, quantization)
    _Layers(model, sources, chunks, wanted, folder, shrink, encoder).encode(progress)
    return folder


def check_shrink(shrink: float) -> None:
    """Raise if a shrinkage is not possible."""
    if not 0.0 <= shrink <= 1.0:
        raise UsageError(f"a shrinkage of {shrink} is not possible; expected 0 to 1")


def forget(folder: Path) -> None:
    """Remove the folder of a finished run."""
    shutil.rmtree(folder, ignore_errors=True)


def _folder(
    source: Path, out: Path, chunks: Sequence[npt.NDArray[np.int64]], shrink: float, quantization: Quantization
) -> Path:
    """The folder for these arguments; one of other arguments is replaced.

    The blocks of a layer depend on the types of all layers before it, and on the keys that tell how the model runs.
    """
    folder = feedback_folder(out)
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk.tobytes())
    types = {
        each.source.name: (each.choice.type_name, None if each.grouped is None else each.grouped.spec)
        for each in quantization.coded
    }
    contents = quantization.contents
    keys = sorted(each for each in contents.metadata.items() if not each[0].startswith("tokenizer."))
    digest.update(repr((types, keys, contents.config)).encode())
    identity = [arithmetic_version(), str(source.resolve()), model_state(source), shrink, digest.hexdigest()]
    try:
        if folder_identity(folder) == identity:
            return folder
    except (OSError, ValueError):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_atomically(folder / _IDENTITY_NAME, json.dumps(identity).encode(), sync=False)
    return folder


class _Layers:
    """Encodes the layers of a model one after the other, as their inputs for all chunks of a text say.

    The copy with layers that are encoded already runs beside the model.
    """

    def __init__(
        self,
        model: LanguageModel,
        sources: Mapping[str, PlannedTensor],
        chunks: Sequence[npt.NDArray[np.int64]],
        wanted: Wanted,
        folder: Path,
        shrink: float,
        encoder: PieceEncoder,
    ) -> None:
        self._model, self._sources, self._chunks = model, sources, chunks
        self._wanted, self._folder, self._shrink, self._encoder = wanted, folder, shrink, encoder

    def encode(self, progress: CountCallback | None) -> None:
        wanted, output = self._wanted, self._wanted.output
        missing = {number for number, pieces in wanted.layers.items() if self._missing(pieces.values())}
        is_output_missing = output is not None and not is_stored(self._folder, output)
        last = len(self._model.spec.layers) - 1 if is_output_missing else max(missing, default=-1)
        if last < 0:
            return
        done = 0
        if output is not None and is_output_missing and self._model.spec.is_tied:
            done = last + 1
            self._encode_tied(output, progress)
        run = DriftRun(self._model, self._chunks, self._coded_embedding())
        for number in range(last + 1):
            if progress is not None:
                progress(done + number, done + last + 1, f"layer {number}")
            self._encode_layer(run, number)
            run.finish_layer(self._coded_layer(number))
        if output is not None and is_output_missing and not self._model.spec.is_tied:
            gram = run.output_gram(output.label)
            self._encode([([output], self._inputs(gram, [output], frozenset(), None))])

    def _missing(self, pieces: Iterable[Piece]) -> list[Piece]:
        return [piece for piece in pieces if not is_stored(self._folder, piece)]

    # -- embedding and output ------------------------------------------------------------------------------------------

    def _encode_tied(self, output: Piece, progress: CountCallback | None) -> None:
        """Encode an embedding that is also the output matrix, for the last hidden states of the model.

        It comes first, so that the layers compensate for the errors of the embedding.
        """
        layers = len(self._model.spec.layers)

        def report(number: int, _hidden: object) -> None:
            if progress is not None:
                progress(number, 2 * layers, "embedding")

        run = LayerwiseRun(self._model, self._chunks)
        run.start()
        run.run_layers(report)
        gram = DriftGram.of_size(self._model.spec.hidden, output.label)
        for hidden in run.hidden:
            gram.add(normalized(hidden, self._model.weights.final_norm), None)
        self._encode([([output], self._inputs(gram, [output], frozenset(), None))])

    def _coded_embedding(self) -> Tensor | None:
        """The embedding of the output, or None if it is unchanged."""
        coded = self._wanted.embedding
        if coded is None or (coded.grouped is None and coded.choice.type_name == coded.source.type_name):
            return None
        piece = Piece(coded.source.name, coded)
        if coded.grouped is not None and not is_stored(self._folder, piece):
            ones = np.ones(piece.columns, np.float32)
            store_piece(self._folder, piece, encode_rows(piece.label, piece.values(), coded.grouped.spec, ones))
        stored = stored_values(self._folder, coded)
        if stored is None:
            return coded.parts[0].make().realize()
        return stored if coded.grouped is None else stored.realize()  # rows of an expression take long to look up

    # -- layers --------------------------------------------------------------------------------------------------------

    def _encode_layer(self, run: DriftRun, number: int) -> None:
        """Run a layer, and encode its matrices, some experts at a time."""
        pieces = self._wanted.of_layer(number)
        weights = self._model.layer_weights(number)
        labels = layer_labels(weights, self._wanted.stacks)
        missing = {piece.label: piece for piece in self._missing(pieces.values())}
        groups = in_groups(missing.values(), MOST_GRAM_BYTES)
        inner, router = inner_labels(weights, labels), router_label(weights, labels)
        if router is not None and inner & missing.keys():
            groups[0] = [router, *groups[0]]
        of_all: DriftGram | None = None
        for index, group in enumerate(groups):
            grams = run.next_layer(weights, lambda each: labels.get(id(each)), group, is_last=index == len(groups) - 1)
            of_all = next((gram for gram in grams if router in gram.names), of_all)
            wanted = [(gram, [missing[name] for name in gram.names if name in missing]) for gram in grams]
            self._encode((own, self._inputs(gram, own, inner, of_all)) for gram, own in wanted if own)
        self._encode_unused(number, missing, inner, of_all)
        for coded in self._wanted.coded_of_layer(number).values():
            join_items(self._folder, coded)

    def _inputs(
        self, gram: DriftGram, pieces: Sequence[Piece], inner: frozenset[str], of_all: DriftGram | None
    ) -> Inputs:
        """The inputs of matrices that share them."""
        if not (np.isfinite(gram.total).all() and np.isfinite(gram.drift).all()):
            raise UsageError(f"{self._model.path}: the inputs of {gram.names[0]!r} are not finite")
        if pieces[0].item is None:
            return known_inputs(gram, self._shrink, _DRIFT_SHARE)
        return expert_inputs(gram, of_all if pieces[0].label in inner else None, self._shrink, _DRIFT_SHARE)

    def _encode_unused(
        self, number: int, missing: Mapping[str, Piece], inner: frozenset[str], of_all: DriftGram | None
    ) -> None:
        """Encode the experts that no token was routed to, if others of their stacks were encoded."""
        unused = [piece for piece in self._missing(missing.values()) if piece.item is not None]
        stacks = self._wanted.of_layer(number).values()
        used = {id(piece.coded) for piece in stacks if is_stored(self._folder, piece)}
        unused = [piece for piece in unused if id(piece.coded) in used]
        nothing = ((DriftGram.of_size(piece.columns, piece.label), piece) for piece in unused)
        self._encode(([piece], self._inputs(gram, [piece], inner, of_all)) for gram, piece in nothing)
        if unused:
            count = 1 + max(piece.item or 0 for piece in stacks)
            numbers = sorted({piece.item for piece in unused if piece.item is not None})
            add_warning(self._folder, unused_warning(number, numbers, count))

    def _encode(self, known: Iterable[tuple[Sequence[Piece], Inputs]]) -> None:
        factored = ((pieces, known_from(inputs)) for pieces, inputs in known)
        for piece, encoded in self._encoder(factored):
            store_piece(self._folder, piece, encoded)

    def _coded_layer(self, number: int) -> LayerWeights:
        """The weights of a layer, with blocks where it is encoded."""
        model, coded, pieces = self._model, self._wanted.coded_of_layer(number), self._wanted.of_layer(number)

        def take(name: str) -> Tensor:
            found = None
            if name in pieces:
                found = stored_values(self._folder, pieces[name].coded, pieces[name].item)
            elif name in coded:
                found = stored_values(self._folder, coded[name])
            return self._sources[name].make() if found is None else found

        source = TensorSource(str(model.path), model.weights.names, take)
        return read_layer(Reader(source, model.spec), model.spec.layers[number])
