"""A model as it is on disk, in any of the formats, as a record: headers, config and small files; no weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from lbrx.errors import FormatError
from lbrx.files.checkpoint.opening import Checkpoint, contents_format, open_checkpoint
from lbrx.files.formats.gguf_values import GgufMetadata
from lbrx.files.formats.header import QUANTIZATION_KEY
from lbrx.files.output.contents import Contents, PlannedTensor, side_files

_SPLIT_PREFIX = "split."
_DIRECTORY_FORMATS = ("huggingface", "pytorch-directory")


def read_contents(path: Path, *, keeps_codes: bool = False) -> Contents:
    """The model at a path: a Hugging Face, PyTorch or MLX directory, a file of weights, or a GGUF file, split or not.

    With ``keeps_codes``, weights of a quantized Hugging Face model know their codes, if MLX has the same coding.

    >>> import lbrx, tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.gguf"
    >>> lbrx.save(path, {"w": lbrx.full((2, 3), 1.0, "f32")}, {"general.architecture": "llama"})
    >>> contents = read_contents(path)
    >>> contents.format, contents.by_name["w"].shape, contents.metadata["general.architecture"]
    ('gguf', (2, 3), 'llama')
    """
    checkpoint = open_checkpoint(path)
    format = contents_format(checkpoint)
    if format == "mlx":
        from lbrx.models.architectures.mlx_weights import read_mlx

        return read_mlx(path)
    return _gguf_contents(checkpoint) if format == "gguf" else _safetensors_contents(checkpoint, keeps_codes)


def _safetensors_contents(checkpoint: Checkpoint, keeps_codes: bool) -> Contents:
    directory = checkpoint.path if checkpoint.format in _DIRECTORY_FORMATS else None
    found = checkpoint.quantization
    metadata: dict[str, Any] = {key: value for key, value in checkpoint.metadata.items() if key != QUANTIZATION_KEY}
    return Contents(
        "safetensors",
        _with_codes(checkpoint) if keeps_codes else _tensors(checkpoint),
        metadata,
        checkpoint.config,
        () if directory is None else side_files(directory),
        checkpoint.files,
        directory,
        decoded_from=None if found is None or found.scheme is None or found.scheme.is_original else found.scheme.name,
    )


def _gguf_contents(checkpoint: Checkpoint) -> Contents:
    metadata = checkpoint.metadata
    if not isinstance(metadata, GgufMetadata):
        raise FormatError(f"{checkpoint.path}: has no GGUF key-values")
    pairs = {key: typed for key, typed in metadata.typed().items() if not key.startswith(_SPLIT_PREFIX)}
    return Contents("gguf", _tensors(checkpoint), GgufMetadata(pairs), sources=checkpoint.files)


def _tensors(checkpoint: Checkpoint) -> tuple[PlannedTensor, ...]:
    return tuple(PlannedTensor.of(name, tensor) for name, tensor in checkpoint.items())


def _with_codes(checkpoint: Checkpoint) -> tuple[PlannedTensor, ...]:
    return tuple(replace(planned, codes=checkpoint.stored_codes(planned.name)) for planned in _tensors(checkpoint))
