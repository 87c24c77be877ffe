"""A summary of a checkpoint, read from its headers."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from lbrx.base.fast_dataclass import dataclass
from lbrx.base.system import format_bytes
from lbrx.errors import FormatError, UsageError
from lbrx.files.checkpoint.opening import Checkpoint, open_checkpoint
from lbrx.files.formats.header import FileHeader, TensorEntry, TypeTotal, quoted, type_totals

_LAYER_COUNT_KEYS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")


@dataclass(frozen=True, slots=True)
class Summary:
    """A checkpoint, or the tensors in it whose names match a pattern."""

    path: str
    format: str
    files: tuple[FileHeader, ...]
    architecture: str | None
    layer_count: int | None
    chosen: tuple[tuple[FileHeader, TensorEntry], ...]
    metadata: Mapping[str, Any]
    config: dict[str, Any] | None
    quantization: str | None = None
    """How the model is quantized, such as ``"4 bits in groups of 64"`` (MLX) or ``"GPTQ, 4 bits in groups of 128"``."""
    weights: Mapping[str, int] | None = None
    """The number of weights in each stored tensor of a quantized Hugging Face model: 0 for scales."""

    @property
    def file_bytes(self) -> int:
        return sum(header.file_bytes for header in self.files)

    @property
    def tensor_count(self) -> int:
        """The number of all tensors, selected or not."""
        return sum(len(header.entries) for header in self.files)

    @property
    def parameters(self) -> int:
        """The number of weights: codes are counted one by one, and scales and other parts are none."""
        if self.weights is not None:
            return sum(self.weights.get(entry.name, 0) for _, entry in self.chosen)
        entries = {entry.name: entry for header in self.files for entry in header.entries}
        return sum(_weights(entry, entries, self.config or {}) for _, entry in self.chosen)

    @property
    def nbytes(self) -> int:
        return sum(entry.nbytes for _, entry in self.chosen)

    def type_totals(self) -> list[TypeTotal]:
        """Return one row per type, sorted by bytes in descending order."""
        return type_totals((entry.type_name, math.prod(entry.shape), entry.nbytes) for _, entry in self.chosen)

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: the types and their sizes."""
        from lbrx.tensors.display import table_html

        caption = f"{self.path}: {self.format}, {self.parameters:,} parameters, {format_bytes(self.file_bytes)}"
        rows = [
            (row.type_name, f"{row.tensors:,}", f"{row.elements:,}", format_bytes(row.nbytes))
            for row in self.type_totals()
        ]
        return table_html(caption, ("type", "tensors", "elements", "size"), rows)


def inspect(path: str | PathLike[str], *, pattern: str | None = None) -> Summary:
    """Summarize a model file or directory from its headers; ``pattern`` selects tensors.

    >>> from lbrx.demo.models import demo_models
    >>> inspect(demo_models().base).format
    'huggingface'
    """
    with _collection_paused():
        return summarize(open_checkpoint(Path(path), raw=True), pattern)


@contextmanager
def _collection_paused() -> Iterator[None]:
    """Pause the garbage collector: it would take a third of the time, and headers contain no cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def summarize(model: Checkpoint, pattern: str | None = None) -> Summary:
    """Describe a checkpoint; with a pattern, only the tensors whose names match it.

    A pattern with ``*``, ``?`` or ``[`` must match the whole name; other text may match anywhere in it.

    >>> import lbrx, tempfile
    >>> path = tempfile.mkdtemp() + "/a.safetensors"
    >>> lbrx.save(path, {"a.weight": lbrx.tensor([1, 2], "f32"), "a.bias": lbrx.tensor([3], "f32")})
    >>> summarize(lbrx.open(path)).parameters, summarize(lbrx.open(path), "*.bias").parameters
    (3, 1)
    """
    entries = [(header, entry) for header in model.files for entry in header.entries]
    chosen = tuple(each for each in entries if pattern is None or _matches(each[1].name, pattern))
    if pattern is not None and not chosen:
        example = f", such as {quoted(entries[0][1].name)}" if entries else ""
        raise UsageError(f"{model.path}: none of its {len(entries)} tensors matches {pattern!r}{example}")
    architecture, layer_count = _architecture(model.metadata, model.config)
    config = model.config
    quantization, weights = _quantization(model)
    return Summary(
        str(model.path),
        model.format,
        model.files,
        architecture,
        layer_count,
        chosen,
        model.metadata,
        config,
        quantization,
        weights,
    )


def _quantization(model: Checkpoint) -> tuple[str | None, Mapping[str, int] | None]:
    """How a model is quantized, and the number of weights in each stored tensor if lbrx can decode them."""
    found = model.quantization
    if found is None:
        return _mlx_quantization(model.config or {}), None
    if found.scheme is None:
        return f"{found.description}; cannot be decoded", None
    sizes = [found.settings.get(key) if found.settings else None for key in ("bits", "group_size")]
    details = f", {sizes[0]} bits in groups of {sizes[1]}" if all(map(_is_whole, sizes)) else ""
    try:
        weights = model.quantized_weights()
        return found.scheme.name + details, None if weights is None else weights.stored_weights()
    except FormatError:  # which `lbrx verify` explains
        return f"{found.scheme.name}{details}; damaged", None


def _mlx_quantization(config: Mapping[str, Any]) -> str | None:
    settings = config.get("quantization")
    if not isinstance(settings, Mapping):
        return None
    mode = settings.get("mode", "affine")
    name = "" if mode == "affine" else f"{mode}, "
    return f"{name}{settings.get('bits')} bits in groups of {settings.get('group_size')}"


def _weights(entry: TensorEntry, entries: Mapping[str, TensorEntry], config: Mapping[str, Any]) -> int:
    """The number of weights that a tensor encodes."""
    settings = config.get("quantization")
    module, _, part = entry.name.rpartition(".")
    codes, scales = entries.get(f"{module}.weight"), entries.get(f"{module}.scales")
    if not isinstance(settings, Mapping) or codes is None or scales is None or codes.type_name != "u32":
        return math.prod(entry.shape)
    if part in ("scales", "biases"):
        return 0
    if part != "weight":
        return math.prod(entry.shape)
    own = settings.get(module)
    group = (own if isinstance(own, Mapping) else settings).get("group_size")
    return math.prod(scales.shape) * group if isinstance(group, int) else math.prod(entry.shape)


def _matches(name: str, pattern: str) -> bool:
    if any(character in pattern for character in "*?["):
        return fnmatchcase(name, pattern)
    return pattern in name


def _architecture(metadata: Mapping[str, Any], config: dict[str, Any] | None) -> tuple[str | None, int | None]:
    """Return the name of the architecture and the number of layers, or None if the file does not state them."""
    if config is not None:
        text = config.get("text_config")
        sections = (config, text) if isinstance(text, dict) else (config,)
        layers = next((s[key] for s in sections for key in _LAYER_COUNT_KEYS if _is_whole(s.get(key))), None)
        return _class_and_type(config), layers
    name = metadata.get("general.architecture")
    layers = metadata.get(f"{name}.block_count")
    return (name, layers if _is_whole(layers) else None) if isinstance(name, str) else (None, None)


def _class_and_type(config: Mapping[str, Any]) -> str | None:
    classes, model_type = config.get("architectures"), config.get("model_type")
    name = classes[0] if isinstance(classes, list) and classes and isinstance(classes[0], str) else None
    if not isinstance(model_type, str):
        return name
    return f"{name} ({model_type})" if name else model_type


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def as_json(summary: Summary) -> dict[str, Any]:
    """Return all fields in JSON types. NaN and infinities, which JSON lacks, become strings."""
    return {
        "path": summary.path,
        "format": summary.format,
        "files": [
            {
                "name": header.path.name,
                "bytes": header.file_bytes,
                "byte_order": header.byte_order,
                "tensors": len(header.entries),
            }
            for header in summary.files
        ],
        "architecture": summary.architecture,
        "layers": summary.layer_count,
        "quantization": summary.quantization,
        "parameters": summary.parameters,
        "bytes": summary.nbytes,
        "types": {
            row.type_name: {"tensors": row.tensors, "elements": row.elements, "bytes": row.nbytes}
            for row in summary.type_totals()
        },
        "metadata": _plain(summary.metadata),
        "config": _plain(summary.config),
        "tensors": [
            {
                "name": entry.name,
                "type": entry.type_name,
                "shape": list(entry.shape),
                "file": header.path.name,
                "offset": entry.offset,
                "bytes": entry.nbytes,
            }
            for header, entry in summary.chosen
        ],
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
