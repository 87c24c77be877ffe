"""Encoders and encoder-decoders between Hugging Face and GGUF: BERT, ModernBERT, T5 and their relatives.

llama.cpp has no names for heads that predict words. They are left out, and the model that comes back has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lbrx.errors import FormatError, UsageError
from lbrx.files.formats.gguf_encode import typed_metadata
from lbrx.files.formats.gguf_values import GgufMetadata
from lbrx.files.formats.strict_json import parse_object, read_json
from lbrx.files.output.contents import Contents, PlannedTensor
from lbrx.files.output.sentence_modules import MODULES_NAME, sentence_modules
from lbrx.jobs.convert.gguf_metadata import general_metadata, source_metadata, with_dtype
from lbrx.models.architectures import check_names, check_shapes
from lbrx.models.architectures.config import Config
from lbrx.models.architectures.family import Family
from lbrx.models.architectures.gguf_metadata import gguf_of, main_type, metadata_of_config
from lbrx.models.architectures.records import Naming, Weight
from lbrx.models.architectures.rope import rope_section
from lbrx.tensors.creation import concatenate
from lbrx.tensors.dtype import DTYPES
from lbrx.tensors.tensor import Tensor, tensor

FIRST_POSITIONS_KEY = "lbrx.hf.first_positions"  # rows of the embedding of positions that llama.cpp does not have
_POOLING_MODES = ("mean", "cls", "lasttoken")  # in the order of their numbers in llama.cpp, from 1
_OLD_NAMES = {".gamma": ".weight", ".beta": ".bias"}
_LISTED_PROBLEMS = 3


def encoder_to_gguf(
    contents: Contents, family: Family, vocabulary: Mapping[str, Any], type_name: str | None, where: str
) -> Contents:
    """Return the GGUF form of an encoder; no weights are read but rows of positions without a token."""
    assert contents.config is not None
    names = [each.name for each in contents.tensors]
    shapes = {each.name: each.shape for each in contents.tensors}
    problems = [*check_names(family, contents.config, names), *check_shapes(family, contents.config, shapes)]
    naming = family.naming(names)
    config = family.config(contents.config, f"{where}: config.json")
    known = dict(_expanded(family, config, naming))
    planned: list[PlannedTensor] = []
    lost: list[str] = []
    extra: dict[str, Any] = {}
    for each in contents.tensors:
        weight, gguf_name = known.get(_current_name(each.name), (None, None))
        if weight is None:
            problems.append(f"tensor {each.name!r} is not known")
        elif gguf_name is None:
            lost += [] if weight.is_buffer else [each.name]
        else:
            made = _as_gguf(each, weight, gguf_name, type_name)
            if gguf_name == "position_embd.weight" and (offset := _offset(family, config)):
                extra |= {FIRST_POSITIONS_KEY: each.make()[:offset].to("f32").numpy().reshape(-1)}
                made = _without_rows(made, offset)
            planned.append(made)
    if problems:
        raise UsageError(f"{where}: the model cannot be converted: {'; '.join(problems[:_LISTED_PROBLEMS])}")
    has_head = any(each.name.startswith("cls.") for each in planned)
    if len({each.name for each in planned}) < len(planned):
        raise UsageError(f"{where}: llama.cpp needs names for the labels of this head ('id2label')")
    labels = _labels(config)
    if labels is not None:
        extra[f"{gguf_of(family).name}.classifier.output_labels"] = labels
    stored = dict(contents.config) if has_head else {**contents.config, "architectures": [family.class_name]}
    types = {each.name: each.type_name for each in contents.tensors if each.name not in lost}
    metadata = {
        **general_metadata(family, planned, where.rstrip("/").rpartition("/")[2], 0),
        **metadata_of_config(family, config, rope_section(config)),
        **_pooling(contents.directory, gguf_of(family).name),
        **vocabulary,
        **_token_types(family, config),
        **source_metadata(stored, types),
        **extra,
    }
    note = f"{len(lost)} tensors are left out: llama.cpp has no names for them in {gguf_of(family).name}"
    return replace(
        contents,
        format="gguf",
        tensors=tuple(planned),
        metadata=GgufMetadata(typed_metadata(metadata)),
        config=None,
        side_files=(),
        warnings=(*contents.warnings, *([note] if lost else [])),
    )


def encoder_to_hf(contents: Contents, family: Family, config: Mapping[str, Any], usual: str, where: str) -> Contents:
    """Return the Hugging Face form of a GGUF file that lbrx wrote of an encoder, in the type that it had."""
    has_head = any(each.name.startswith("cls.") for each in contents.tensors)
    naming = family.namings[0] if has_head else Naming("")
    settings = family.config(config, f"{where}: config.json", FormatError)
    names = {gguf: (name, weight) for name, (weight, gguf) in _expanded(family, settings, naming) if gguf is not None}
    unknown = [each.name for each in contents.tensors if each.name not in names]
    if unknown:
        raise UsageError(f"{where}: tensor {unknown[0]!r} is not known in {gguf_of(family).name}")
    first = contents.metadata.get(FIRST_POSITIONS_KEY)
    tensors = []
    for each in contents.tensors:
        name, _ = names[each.name]
        made = each.renamed(name)
        if each.name == "position_embd.weight" and first is not None:
            made = _with_rows(made, tensor(first).reshape(-1, each.shape[1]))
        dtype = usual if each.type_name in DTYPES else "bf16"
        tensors.append(_cast(made, dtype))
    return replace(
        contents,
        format="safetensors",
        tensors=tuple(tensors),
        metadata={"format": "pt"},
        config=with_dtype(config, main_type(tensors)),
    )


def _expanded(family: Family, config: Config, naming: Naming) -> Iterator[tuple[str, tuple[Weight, str | None]]]:
    """Yield every tensor that a model can have: its name, and its weight with its name in GGUF."""
    has_labels = _labels(config) is not None
    for weight in family.weights:
        layers = range(config.count(family.layers_key)) if weight in family.layer else (None,)
        items = (None,) if weight.items is None else range(config.size(weight.items))
        for layer in layers:
            needs = weight.needed_when
            if needs is not None and not config.evaluate(needs, layer=layer or 0):
                continue
            for item in items:
                gguf = None if weight.gguf is None else weight.gguf.replace("{layer}", str(layer))
                gguf = None if gguf is None else gguf.replace("{item}", str(item))
                if gguf is not None and weight.name in ("classifier.weight", "classifier.bias") and has_labels:
                    gguf = f"cls.output.{gguf.rpartition('.')[2]}"
                yield naming.expand(weight.name, layer, item), (weight, gguf)


def _token_types(family: Family, config: Config) -> dict[str, Any]:
    """Return the number of kinds of text, without which llama.cpp does not read their embedding."""
    if "token_types.weight" not in family.by_gguf_name:
        return {}
    return {"tokenizer.ggml.token_type_count": config.count("type_vocab_size")}


def _labels(config: Config) -> list[str] | None:
    """Return the names of the labels of a classifier; None if they have the two usual ones, or it has no labels."""
    given = config.get("id2label")
    if given is None:
        return None
    if not isinstance(given, Mapping) or not all(str(key).isdecimal() for key in given):
        raise config.wrong(f"'id2label' is {given!r:.60}; expected an object of numbers and labels")
    labels = [str(given[key]) for key in sorted(given, key=int)]
    return None if len(labels) == 2 and labels[0] == "LABEL_0" else labels


def _current_name(name: str) -> str:
    end = next((end for end in _OLD_NAMES if name.endswith(end)), None)
    return name if end is None else name.removesuffix(end) + _OLD_NAMES[end]


def _as_gguf(each: PlannedTensor, weight: Weight, name: str, type_name: str | None) -> PlannedTensor:
    if each.type_name not in DTYPES or not DTYPES[each.type_name].is_float:
        raise UsageError(f"tensor {each.name!r} is {each.type_name}; expected floating-point weights")
    own = "f32" if each.type_name == "f64" else each.type_name
    is_small = len(each.shape) < 2 or (weight.shape is not None and weight.is_always_f32)
    is_small = is_small or name == "token_types.weight"
    return _cast(each.renamed(name), "f32" if is_small else type_name or own)


def _cast(each: PlannedTensor, type_name: str) -> PlannedTensor:
    if each.type_name == type_name:
        return each
    return each.mapped(lambda values: values.to(type_name), type_name=type_name)


def _offset(family: Family, config: Config) -> int:
    """Return the number of the first position, which follows the padding token in RoBERTa."""
    expression = gguf_of(family).first_position
    return 0 if expression is None else config.size(expression)


def _without_rows(each: PlannedTensor, count: int) -> PlannedTensor:
    return each.mapped(lambda values: values[count:], shape=(each.shape[0] - count, *each.shape[1:]))


def _with_rows(each: PlannedTensor, rows: Tensor) -> PlannedTensor:
    shape = (rows.shape[0] + each.shape[0], *each.shape[1:])
    return each.mapped(lambda values: _joined(rows, values.to("f32")), shape=shape, type_name="f32")


def _joined(first: Tensor, second: Tensor) -> Tensor:
    return concatenate([first, second])


def _pooling(directory: Path | None, name: str) -> dict[str, Any]:
    """Return how the hidden states of a text become one, as sentence-transformers says."""
    if directory is None or not list(sentence_modules(directory)):  # which checks all paths
        return {}
    path = directory / MODULES_NAME
    modules = parse_object(b'{"modules":' + path.read_bytes() + b"}", str(path))["modules"]
    folder = next((each.get("path", "") for each in modules if str(each.get("type", "")).endswith("Pooling")), None)
    if folder is None:
        return {}
    settings_path = directory / folder / "config.json"
    settings = read_json(settings_path)
    given = settings.get("pooling_mode")
    keys = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token", "lasttoken": "pooling_mode_lasttoken"}
    several = [key for key, value in settings.items() if key.startswith("pooling_mode_") and value is True]
    if len(several) > 1:
        raise UsageError(f"{settings_path}: joins the results of {', '.join(several)}; llama.cpp has one of them")
    mode = next((mode for mode, key in keys.items() if settings.get(key)), given)
    if mode not in _POOLING_MODES:
        raise UsageError(f"{settings_path}: pools by {mode!r}; llama.cpp has {', '.join(_POOLING_MODES)}")
    return {f"{name}.pooling_type": _POOLING_MODES.index(mode) + 1}
