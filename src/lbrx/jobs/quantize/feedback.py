"""Blocks whose errors are small for the inputs that a model sees: measured and encoded layer by layer.

A layer is run on all chunks of the text. The Gram matrices of its inputs are summed up, its tensors are encoded with
them, and their blocks are stored in a folder beside the output. Memory holds the hidden states of the text and one
layer. A tensor whose blocks are stored is not encoded again.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
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
from lbrx.models.architectures.gguf_roles import layer_of
from lbrx.models.inference import LanguageModel, open_model
from lbrx.models.inference.grams import LayerGrams
from lbrx.models.inference.watching import matrix_names
from lbrx.models.tokenizers.text import open_tokenizer
from lbrx.ops.feedback import encode_with_feedback, feedback_factors, gains_from_feedback
from lbrx.tensors.coded import stored_expr
from lbrx.tensors.storage import MmapStorage
from lbrx.tensors.tensor import Tensor
from lbrx.version import __version__

Floats = npt.NDArray[np.float32]
DEFAULT_SHRINK = 0.5
_IDENTITY_NAME = "identity.json"
_ROWS_BYTES = 64 << 20  # of values that are encoded at a time


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
    if not 0.0 <= shrink <= 1.0:
        raise UsageError(f"a shrinkage of {shrink} is not possible; expected 0 to 1")
    model = open_model(source)
    chunks = calibration_chunks(model, open_tokenizer(source), texts, DEFAULT_CONTEXT, None)
    wanted = {each.source.name: each for each in quantization.coded if _can_be_encoded(each)}
    folder = _folder(source, out, chunks, shrink)
    _Layers(model, chunks, folder, shrink).encode(wanted, progress)
    return folder


def forget(folder: Path) -> None:
    """Remove the folder of a finished run."""
    shutil.rmtree(folder, ignore_errors=True)


def _can_be_encoded(each: CodedTensor) -> bool:
    tensor, type_name = each.source, each.choice.type_name
    is_matrix = len(tensor.shape) == 2 and layer_of(tensor.name) is not None
    return is_matrix and gains_from_feedback(type_name) and type_name != tensor.type_name


def _folder(source: Path, out: Path, chunks: Sequence[npt.NDArray[np.int64]], shrink: float) -> Path:
    """The folder for these arguments; one of other arguments is replaced."""
    folder = out.with_name(f".{out.name}.feedback")
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk.tobytes())
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
    """Encodes the layers of a model one after the other, as their inputs for all chunks of a text say."""

    def __init__(
        self, model: LanguageModel, chunks: Sequence[npt.NDArray[np.int64]], folder: Path, shrink: float
    ) -> None:
        self._path, self._folder, self._shrink = model.path, folder, shrink
        names = {key: name.tensor for key, name in matrix_names(model.spec, model.weights).items()}
        self._grams = LayerGrams(model, chunks, lambda matrix: names.get(id(matrix)))

    def encode(self, wanted: dict[str, CodedTensor], progress: CountCallback | None) -> None:
        missing = {
            name: each
            for name, each in wanted.items()
            if not (self._folder / _file_name(name, each.choice.type_name)).exists()
        }
        last = max((layer_of(name) or 0 for name in missing), default=-1)
        for number in range(last + 1):
            if progress is not None:
                progress(number, last + 1, f"layer {number}")
            for gram in self._grams.next_layer(name for name in missing if layer_of(name) == number):
                if not np.isfinite(gram.total).all():
                    raise UsageError(f"{self._path}: the inputs of {gram.names[0]!r} are not finite")
                factors = feedback_factors(gram.total, self._shrink)
                importance = (gram.total.diagonal() / np.float32(max(gram.count, 1))).astype(np.float32)
                for name in gram.names:
                    self._store(missing[name], importance, factors)

    def _store(self, each: CodedTensor, importance: Floats, factors: Floats) -> None:
        tensor, type_name = each.source, each.choice.type_name
        values = tensor.make().dequantize().to("f32")
        rows, columns = tensor.shape
        count = max(_ROWS_BYTES // (4 * columns), 1)
        parts = []
        for first in range(0, rows, count):
            part = np.ascontiguousarray(values[first : first + count].numpy())
            if not np.isfinite(part).all():
                raise UsageError(f"tensor {tensor.name!r} has values that are not finite")
            parts.append(encode_with_feedback(part, type_name, importance, factors).tobytes())
        write_atomically(self._folder / _file_name(tensor.name, type_name), b"".join(parts), sync=False)
