"""A GGUF model whose tensors get other types: which of them never do, and the key-values that follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lbrx.files.formats.gguf_encode import typed_metadata
from lbrx.files.formats.gguf_types import GGML_TYPES
from lbrx.files.formats.gguf_values import Typed
from lbrx.files.formats.shards import SPLIT_KEYS
from lbrx.files.output.contents import Contents, PlannedTensor
from lbrx.jobs.convert.file_types import FILE_TYPES, QUANTIZATION_VERSION, FileType
from lbrx.models.architectures.gguf_roles import reason_to_keep

FILE_TYPE_KEY = "general.file_type"


def gguf_with_type(contents: Contents, type: str) -> Contents:
    """The model with all weights in a float type, quantized ones as well, but for those that llama.cpp keeps."""
    tensors = tuple(_retyped(tensor, type) for tensor in contents.tensors)
    return replace(contents, tensors=tensors, metadata=retyped_metadata(contents.metadata, FILE_TYPES[type]))


def _retyped(tensor: PlannedTensor, type: str) -> PlannedTensor:
    if tensor.type_name == type or reason_for_own_type(tensor) is not None:
        return tensor
    return tensor.mapped(lambda values: values.dequantize().to(type), type_name=type)


def reason_for_own_type(tensor: PlannedTensor) -> str | None:
    """Why a tensor stays of the type that it has, or None if it may get another."""
    ggml_type = GGML_TYPES.get(tensor.type_name)
    if ggml_type is not None and ggml_type.dtype is not None and not ggml_type.dtype.is_float:
        return "not floating point"
    return reason_to_keep(tensor.name, tensor.shape)


def retyped_metadata(metadata: Mapping[str, Any], file_type: FileType) -> dict[str, Typed]:
    """The key-values of a GGUF model whose tensors get other types."""
    pairs = {key: typed for key, typed in typed_metadata(metadata).items() if key not in SPLIT_KEYS}
    pairs["general.quantization_version"] = Typed(QUANTIZATION_VERSION, "u32")
    pairs[FILE_TYPE_KEY] = Typed(file_type.number, "u32")
    return pairs
