"""Key-values of a GGUF file about the model as a whole and about the Hugging Face model that it came from."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lbrx.errors import FormatError
from lbrx.files.formats.strict_json import parse_object
from lbrx.files.output.contents import PlannedTensor
from lbrx.jobs.convert.file_types import (
    FILE_TYPES,
    FLOAT_TYPES,
    QUANTIZATION_VERSION,
    FileType,
    file_type_of_base,
)
from lbrx.models.architectures.config import text_section
from lbrx.models.architectures.family import Family
from lbrx.models.architectures.gguf_config import TORCH_NAMES
from lbrx.models.architectures.gguf_metadata import (
    gguf_of,
    main_type,
    metadata_of_config,
    stored_prediction_count,
)
from lbrx.models.architectures.rope import rope_section
from lbrx.models.architectures.table import family_of_gguf, family_of_model_type
from lbrx.registry import CODECS
from lbrx.tensors.dtype import DTYPES

CONFIG_KEY = "lbrx.hf.config"  # the JSON of config.json
DTYPE_KEY = "lbrx.hf.dtype"  # the type of tensors in the Hugging Face model
DTYPES_KEY = "lbrx.hf.dtypes"  # JSON: tensors of other types
TIED_HEAD_KEY = "lbrx.hf.has_tied_head"  # whether the model stores a head that is its embedding
NORM_REST_PREFIX = "lbrx.hf.norm_rest."  # what rounding took from a norm when 1 was added


def general_metadata(family: Family, tensors: Sequence[PlannedTensor], name: str, experts: int) -> dict[str, Any]:
    """The key-values ``general.*``."""
    main = main_type(tensors)
    return {
        "general.architecture": gguf_of(family).name,
        "general.type": "model",
        "general.name": name,
        "general.size_label": size_label(tensors, experts),
        "general.file_type": _file_type(main).number,
        "general.quantization_version": QUANTIZATION_VERSION,
    }


def _file_type(main: str) -> FileType:
    """The file type that names the type of most weights best."""
    return file_type_of_base(main) if main in CODECS else FILE_TYPES[main if main in FLOAT_TYPES else "f16"]


def size_label(tensors: Sequence[PlannedTensor], experts: int) -> str:
    """The size of a model as its users call it, such as ``8x7B``: of a mixture what one expert and the rest have.

    >>> import lbrx
    >>> size_label([PlannedTensor.of("w", lbrx.full((1200, 1000), 0, "f32"))], 0)
    '1.2M'
    """
    total = sum(math.prod(tensor.shape) for tensor in tensors)
    if not experts:
        return _short_count(total)
    stacked = sum(math.prod(tensor.shape) for tensor in tensors if "_exps." in tensor.name)
    return f"{experts}x{_short_count(total - stacked + stacked // experts)}"


def _short_count(count: int) -> str:
    """A number of parameters with two digits or more."""
    scales = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"))
    scale, letter = next((row for row in scales if count >= row[0]), (1e3, "K"))
    scaled = count / scale
    return f"{scaled:.{max(2 - len(str(round(scaled)).lstrip('0')), 0)}f}{letter}"


def source_metadata(config: Mapping[str, Any], dtypes: Mapping[str, str]) -> dict[str, Any]:
    """What brings the Hugging Face model back whole: its config.json and the types of its tensors.

    >>> source_metadata({"model_type": "llama"}, {"a": "bf16", "b": "bf16", "c": "f32"})["lbrx.hf.dtypes"]
    '{"c": "f32"}'
    """
    names = list(dtypes.values())
    usual = max(dict.fromkeys(names), key=names.count, default="f32")
    others = {name: dtype for name, dtype in dtypes.items() if dtype != usual}
    pairs = {CONFIG_KEY: json.dumps(config, ensure_ascii=False), DTYPE_KEY: usual}
    return {**pairs, DTYPES_KEY: json.dumps(others, ensure_ascii=False)} if others else pairs


def text_config(config: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """The config.json of the language model. For a multimodal model, this is its text section.

    >>> from lbrx.models.architectures.table import load_family
    >>> nested = {"model_type": "gemma3", "dtype": "bfloat16", "text_config": {"hidden_size": 8}}
    >>> text_config(nested, load_family("gemma3"))["architectures"]
    ['Gemma3ForCausalLM']
    """
    section = text_section(config)
    if section is config and family.text_only is None:
        return {key: value for key, value in config.items() if key != "vision_config"}
    outer = {key: config[key] for key in _SHARED_KEYS if config.get(key) is not None}
    tied = {"tie_word_embeddings": family.is_tied(config)}
    return {"architectures": [family.class_name], **outer, **section, **tied, "model_type": family.model_type}


_SHARED_KEYS = ("dtype", "torch_dtype", "bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings")


def stored_config(metadata: Mapping[str, Any], where: str) -> tuple[Family, dict[str, Any]] | None:
    """The config.json that lbrx put into the file, None if there is none or other key-values disagree with it."""
    text = metadata.get(CONFIG_KEY)
    if not isinstance(text, str):
        return None
    config = parse_object(text, f"{where}: key {CONFIG_KEY!r}", unique_keys=False)
    family = family_of_model_type(config)
    if family is not None and family.gguf is not None and family.gguf.name != metadata.get("general.architecture"):
        family = family_of_gguf(metadata)
    if family is None or family.gguf is None:
        return None
    settings = family.whole_config(config, (), f"{where}: key {CONFIG_KEY!r}")
    predicting = stored_prediction_count(family, metadata)
    expected = metadata_of_config(family, settings, rope_section(settings), predicting)
    is_same = all(_is_alike(metadata.get(key), value) for key, value in expected.items())
    return (family, config) if is_same else None


def _is_alike(value: Any, expected: Any) -> bool:
    if isinstance(expected, float) and isinstance(value, int | float):
        return bool(np.float32(value) == np.float32(expected))
    return bool(np.array_equal(np.asarray(value), np.asarray(expected)))


def with_dtype(config: Mapping[str, Any], type_name: str) -> dict[str, Any]:
    """A config that names the type that most weights have.

    >>> with_dtype({"torch_dtype": "float32"}, "bf16")
    {'torch_dtype': 'bfloat16'}
    """
    name = TORCH_NAMES.get(type_name)
    key = "dtype" if "dtype" in config else "torch_dtype"
    if name is None or type_name not in DTYPES:
        return dict(config)
    return {**config, key: name}


def stored_dtypes(text: Any, where: str) -> dict[str, str]:
    """The types of tensors that differ from the usual one, checked.

    >>> stored_dtypes('{"a": "f32"}', "a.gguf")
    {'a': 'f32'}
    """
    if text is None:
        return {}
    try:
        dtypes = json.loads(text)
    except (TypeError, ValueError) as error:
        raise FormatError(f"{where}: the types of tensors are not JSON: {error}") from error
    if not isinstance(dtypes, dict) or any(name not in DTYPES for name in dtypes.values()):
        raise FormatError(f"{where}: the types of tensors are {text!r:.60}; expected an object of dtypes")
    return dtypes
