"""A model as it is on disk, in any of the formats, as a record: headers, config and small files; no weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lbrx.errors import FormatError
from lbrx.files.checkpoint.integer_parts import QUANTIZATION_KEY
from lbrx.files.checkpoint.opening import Checkpoint, contents_format, open_checkpoint
from lbrx.files.formats.gguf_values import GgufMetadata
from lbrx.files.formats.model_files import OTHER_FILES, TOKENIZER_FILES
from lbrx.files.output.contents import Contents, PlannedTensor
from lbrx.files.output.plan import SideFile
from lbrx.registry import load

_SPLIT_PREFIX = "split."
_DIRECTORY_FORMATS = ("huggingface", "pytorch-directory")
# Formats that are told by more than the ending of files, and their readers: a path in, Contents out.
_READERS: dict[str, str] = {
    "mlx": "lbrx.jobs.convert.mlx_directory:read_mlx",
}


def read_contents(path: Path) -> Contents:
    """The model at a path: a Hugging Face, PyTorch or MLX directory, a file of weights, or a GGUF file, split or not.

    >>> import lbrx, tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.gguf"
    >>> lbrx.save(path, {"w": lbrx.full((2, 3), 1.0, "f32")}, {"general.architecture": "llama"})
    >>> contents = read_contents(path)
    >>> contents.format, contents.by_name["w"].shape, contents.metadata["general.architecture"]
    ('gguf', (2, 3), 'llama')
    """
    checkpoint = open_checkpoint(path)
    kind = contents_format(checkpoint)
    if kind in _READERS:
        read: Callable[[Path], Contents] = load(_READERS[kind])
        return read(path)
    return _gguf_contents(checkpoint) if kind == "gguf" else _safetensors_contents(checkpoint)


def _safetensors_contents(checkpoint: Checkpoint) -> Contents:
    directory = checkpoint.path if checkpoint.format in _DIRECTORY_FORMATS else None
    metadata: dict[str, Any] = {key: value for key, value in checkpoint.metadata.items() if key != QUANTIZATION_KEY}
    return Contents(
        "safetensors",
        _tensors(checkpoint),
        metadata,
        checkpoint.config,
        () if directory is None else side_files(directory),
        checkpoint.files,
        directory,
    )


def _gguf_contents(checkpoint: Checkpoint) -> Contents:
    metadata = checkpoint.metadata
    if not isinstance(metadata, GgufMetadata):
        raise FormatError(f"{checkpoint.path}: has no GGUF key-values")
    kept = {key: typed for key, typed in metadata.typed().items() if not key.startswith(_SPLIT_PREFIX)}
    return Contents("gguf", _tensors(checkpoint), GgufMetadata(kept), sources=checkpoint.files)


def _tensors(checkpoint: Checkpoint) -> tuple[PlannedTensor, ...]:
    return tuple(PlannedTensor.of(name, tensor) for name, tensor in checkpoint.items())


def side_files(directory: Path) -> tuple[SideFile, ...]:
    """The small files of a model's directory that belong to its copies: tokenizer and settings.

    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp())
    >>> written = (place / "generation_config.json").write_text("{}")
    >>> [file.name for file in side_files(place)]
    ['generation_config.json']
    """
    names = (*OTHER_FILES, *TOKENIZER_FILES)
    return tuple(SideFile(name, source=directory / name) for name in names if (directory / name).is_file())
