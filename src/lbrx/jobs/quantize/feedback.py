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
from collections.abc import Mapping, Sequence
from dataclasses import replace
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
from lbrx.jobs.quantize.coded import CodedTensor, Quantization
from lbrx.jobs.quantize.group_codes import encode_rows, finite_rows, store, stored_codes
from lbrx.models.architectures.gguf_roles import layer_of
from lbrx.models.architectures.mlx_modes import SETTING_KEYS
from lbrx.models.architectures.mlx_weights import mlx_to_hf
from lbrx.models.inference import LanguageModel
from lbrx.models.inference.drift import DriftGram, DriftRun
from lbrx.models.inference.layerwise import model_on_demand
from lbrx.models.inference.opening import spec_of_gguf
from lbrx.models.inference.spec import spec_of_config
from lbrx.models.inference.weights import LayerWeights, Reader, TensorSource, read_layer
from lbrx.models.tokenizers.text import open_tokenizer
from lbrx.ops.feedback import (
    DEFAULT_SHRINK,
    drift_correction,
    encode_with_feedback,
    feedback_factors,
    gains_from_feedback,
)
from lbrx.tensors.coded import stored_expr
from lbrx.tensors.storage import MmapStorage
from lbrx.tensors.tensor import Tensor
from lbrx.tensors.tensor import tensor as tensor_of
from lbrx.version import __version__

Floats = npt.NDArray[np.float32]
_DRIFT_SHARE = 0.4  # of the drift of inputs that a matrix makes up for
_IDENTITY_NAME = "identity.json"


def stored_blocks(folder: Path, tensor: PlannedTensor, type_name: str) -> Tensor | None:
    """The blocks of a tensor in a folder, or None."""
    path = folder / _file_name(tensor.name, type_name)
    if not path.exists():
        return None
    return Tensor(stored_expr(MmapStorage.from_file(path), type_name, tensor.shape))


def _file_name(name: str, type_name: str) -> str:
    return f"{name}.{type_name}.blocks"


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
) -> Path:
    """Encode the tensors of all layers of a model for texts; returns the folder of the blocks.

    ``quantization`` has the type of each tensor. Embeddings, stacks of experts, and tensors that stay what they are,
    are left out.
    """
    check_shrink(shrink)
    model, sources = _before_coding(source, quantization)
    chunks = calibration_chunks(model, open_tokenizer(source), texts, DEFAULT_CONTEXT, None)
    wanted = {each.source.name: each for each in quantization.coded if _can_be_encoded(model, each)}
    folder = _folder(source, out, chunks, shrink, quantization)
    _Layers(model, sources, chunks, folder, shrink).encode(wanted, progress)
    return folder


def check_shrink(shrink: float) -> None:
    """Raise if a shrinkage is not possible."""
    if not 0.0 <= shrink <= 1.0:
        raise UsageError(f"a shrinkage of {shrink} is not possible; expected 0 to 1")


def _before_coding(source: Path, quantization: Quantization) -> tuple[LanguageModel, dict[str, PlannedTensor]]:
    """The model with the tensors that are quantized, before they are, and these; a layer is read when it is run."""
    contents = quantization.contents
    tensors = {each.source.name: each.source for each in quantization.coded}
    if contents.format == "gguf":
        metadata = {key: typed.value for key, typed in contents.metadata.items()}
        spec = spec_of_gguf(metadata, {name: each.make() for name, each in tensors.items()}, str(source))
    else:
        config = {key: value for key, value in (contents.config or {}).items() if key not in SETTING_KEYS}
        contents = replace(contents, tensors=tuple(tensors.values()), config=config)
        if contents.format == "mlx":
            contents = mlx_to_hf(contents, type_name="f32", keep_separate=True)
        tensors = contents.by_name
        spec = spec_of_config(config, str(source), frozenset(tensors))
    taken = TensorSource(str(source), frozenset(tensors), lambda name: tensors[name].make())
    return model_on_demand(source, spec, taken), tensors


def forget(folder: Path) -> None:
    """Remove the folder of a finished run."""
    shutil.rmtree(folder, ignore_errors=True)


def _layer_of(model: LanguageModel, name: str) -> int | None:
    return layer_of(name) if model.spec.is_gguf else model.spec.family.layer_of(name)


def _can_be_encoded(model: LanguageModel, each: CodedTensor) -> bool:
    tensor, type_name = each.source, each.choice.type_name
    is_matrix = len(tensor.shape) == 2 and _layer_of(model, tensor.name) is not None
    if each.grouped is not None:
        return is_matrix
    return is_matrix and gains_from_feedback(type_name) and type_name != tensor.type_name


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
    identity = [__version__, str(source.resolve()), model_state(source), shrink, digest.hexdigest()]
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
        folder: Path,
        shrink: float,
    ) -> None:
        self._model, self._sources, self._folder, self._shrink = model, sources, folder, shrink
        self._run = DriftRun(model, chunks)

    def encode(self, wanted: dict[str, CodedTensor], progress: CountCallback | None) -> None:
        missing = {name: each for name, each in wanted.items() if self._stored(each) is None}
        layers = {name: _layer_of(self._model, name) or 0 for name in wanted}
        last = max((layers[name] for name in missing), default=-1)
        for number in range(last + 1):
            if progress is not None:
                progress(number, last + 1, f"layer {number}")
            weights = self._model.layer_weights(number)
            names = [name for name in missing if layers[name] == number]
            for gram in self._run.next_layer(weights, lambda matrix: matrix.weight.name, names):
                self._encode_matrices(gram, [missing[name] for name in gram.names])
            coded = {name: each for name, each in wanted.items() if layers[name] == number}
            self._run.finish_layer(self._coded_layer(number, coded))

    def _encode_matrices(self, gram: DriftGram, matrices: Sequence[CodedTensor]) -> None:
        """Encode all matrices that have the same inputs."""
        if not (np.isfinite(gram.total).all() and np.isfinite(gram.drift).all()):
            raise UsageError(f"{self._model.path}: the inputs of {gram.names[0]!r} are not finite")
        factors = feedback_factors(gram.total, self._shrink)
        importance = (gram.total.diagonal() / np.float32(max(gram.count, 1))).astype(np.float32)
        correction = drift_correction(gram.total, gram.drift, _DRIFT_SHARE) if gram.drift.any() else None
        for each in matrices:
            self._store(each, importance, factors, correction)

    def _stored(self, each: CodedTensor) -> Tensor | None:
        if each.grouped is not None:
            codes = stored_codes(self._folder, each.source.name)
            return None if codes is None else tensor_of(codes.values())
        return stored_blocks(self._folder, each.source, each.choice.type_name)

    def _coded_layer(self, number: int, coded: dict[str, CodedTensor]) -> LayerWeights:
        """The weights of a layer, with blocks where it is encoded."""
        model = self._model

        def take(name: str) -> Tensor:
            blocks = self._stored(coded[name]) if name in coded else None
            return self._sources[name].make() if blocks is None else blocks

        source = TensorSource(str(model.path), model.weights.names, take)
        return read_layer(Reader(source, model.spec), model.spec.layers[number])

    def _store(self, each: CodedTensor, importance: Floats, factors: Floats, correction: Floats | None) -> None:
        tensor, type_name = each.source, each.choice.type_name
        values = tensor.make().dequantize().to("f32")
        if each.grouped is not None:
            store(
                self._folder,
                tensor.name,
                encode_rows(tensor.name, values, each.grouped.spec, importance, factors, correction),
            )
            return
        parts = [
            encode_with_feedback(rows, type_name, importance, factors).tobytes()
            for rows in finite_rows(tensor.name, values, correction)
        ]
        write_atomically(self._folder / _file_name(tensor.name, type_name), b"".join(parts), sync=False)
