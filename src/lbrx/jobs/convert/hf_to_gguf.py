"""A Hugging Face model as a GGUF one: names, order of rows, stacks of experts, key-values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.errors import UsageError, nearest
from lbrx.files.formats.gguf_encode import typed_metadata
from lbrx.files.formats.gguf_types import GGML_TYPES
from lbrx.files.formats.gguf_values import GgufMetadata
from lbrx.files.output.contents import Contents, PlannedTensor
from lbrx.jobs.convert.differences import check_supported, differences
from lbrx.jobs.convert.file_types import FLOAT_TYPES
from lbrx.jobs.convert.gguf_metadata import (
    NORM_REST_PREFIX,
    TIED_HEAD_KEY,
    general_metadata,
    source_metadata,
    text_config,
)
from lbrx.jobs.convert.matching import Match, match_tensors, tensor_pairs
from lbrx.jobs.convert.model_card import card_metadata
from lbrx.models.architectures.config import Config, Values, text_section
from lbrx.models.architectures.family import Family
from lbrx.models.architectures.gguf_metadata import gguf_of, metadata_of_config, rotated_elements
from lbrx.models.architectures.layouts import separated
from lbrx.models.architectures.prediction import layer_name
from lbrx.models.architectures.rope import (
    LONG_FACTORS,
    ROPE_FREQUENCIES,
    SHORT_FACTORS,
    llama3_factors,
    longrope_factors,
    proportional_factors,
    rope_section,
)
from lbrx.models.architectures.table import all_families, family_of_model_type, known_family
from lbrx.models.architectures.value_changes import reshaped, stacked, to_gguf, to_hf
from lbrx.tensors.dtype import DTYPES
from lbrx.tensors.tensor import Tensor, tensor

EMBEDDING, HEAD = "token_embd.weight", "output.weight"

_PREDICTING = ("mtp.", "model.mtp.")  # tensors that predict further tokens are never left out
_TOWERS = ("vision_tower.", "model.vision_tower.", "visual.", "model.visual.")


def hf_to_gguf(
    contents: Contents, *, tokenizer_metadata: Mapping[str, Any] | None = None, type_name: str | None = None
) -> Contents:
    """The GGUF form of a model, ready to be written; no weights are read but the norms of Gemma.

    ``type_name`` (f32, f16 or bf16) is the type of matrices, by default their own; vectors, norms and routers are f32,
    as llama.cpp wants them. ``tokenizer_metadata`` are the key-values ``tokenizer.*``, by default made from the
    tokenizer files of the model's directory.

    >>> import lbrx
    >>> hf_to_gguf(Contents("safetensors", (), config={"model_type": "clip"}))
    Traceback (most recent call last):
    lbrx.errors.UsageError: the model: the model_type of config.json is 'clip', which cannot be converted; expected ...
    """
    where = "the model" if contents.directory is None else str(contents.directory)
    if contents.directory is None and contents.sources:
        where = str(contents.sources[0].path)
    if type_name is not None and type_name not in FLOAT_TYPES:
        raise UsageError(f"{type_name!r} is not a plain type of GGUF; expected one of {', '.join(FLOAT_TYPES)}")
    family = convertible_family(contents.config, where)
    assert contents.config is not None
    if gguf_of(family).is_encoder:
        return _encoder(contents, family, tokenizer_metadata, type_name, where)
    tensors, lost = _language_tensors(contents.tensors, family, contents.config)
    config = family.whole_config(contents.config, [each.name for each in tensors], f"{where}: config.json")
    rope = rope_section(config)
    check_supported(family, config)
    predicting = family.prediction_count(contents.config, [each.name for each in tensors])
    described = metadata_of_config(family, config, rope, predicting)
    matches = match_tensors(
        tensor_pairs(family, config, predicting),
        {each.name: each for each in separated(tensors, family, config)},
        to_gguf=True,
        where=where,
    )
    matches, head_metadata = _decide_head(family, matches, family.is_tied(contents.config), where)
    planned = [*_rope_tensors(rope, config), *(_planned(match, config, type_name) for match in matches)]
    vocabulary = tokenizer_metadata if tokenizer_metadata is not None else _tokenizer_metadata(contents, where)
    _check_vocabulary(vocabulary, config.count("vocab_size"), where)
    experts = 0 if family.expert_count is None else config.count(family.expert_count)
    metadata = {
        **general_metadata(family, planned, _model_name(contents, config), experts),
        **card_metadata(contents.directory),
        **described,
        **vocabulary,
        **source_metadata(text_config(contents.config, family), {each.name: _hf_type(each) for each in tensors}),
        **head_metadata,
        **_rests(matches, config),
    }
    return Contents(
        "gguf",
        tuple(planned),
        GgufMetadata(typed_metadata(metadata)),
        sources=contents.sources,
        directory=contents.directory,
        warnings=(*contents.warnings, *lost, *differences(family, config, rope)),
    )


def _encoder(
    contents: Contents, family: Family, tokenizer: Mapping[str, Any] | None, type_name: str | None, where: str
) -> Contents:
    from lbrx.jobs.convert.encoders import encoder_to_gguf

    assert contents.config is not None
    check_supported(family, family.config(contents.config, f"{where}: config.json"))
    vocabulary = tokenizer if tokenizer is not None else _tokenizer_metadata(contents, where)
    return encoder_to_gguf(contents, family, vocabulary, type_name, where)


def convertible_family(config: Values | None, where: str) -> Family:
    """The family of a config.json that can be converted; of a multimodal model that of its language model.

    >>> convertible_family({"model_type": "mistral"}, "a model").name
    'mistral'
    """
    if config is None:
        raise UsageError(f"{where}: has no config.json, which names the architecture")
    family, named = family_of_model_type(config), known_family(config)
    if named is not None and named.gguf is not None and named.gguf.is_encoder:  # T5 has two kinds of models
        family = named
    if family is not None and family.gguf is not None:
        return family
    known = [family.model_type for family in all_families() if family.gguf is not None]
    model_type = text_section(config).get("model_type") or config.get("model_type")
    raise UsageError(
        f"{where}: the model_type of config.json is {model_type!r}, which cannot be converted; "
        f"expected one of {', '.join(known)}{nearest(str(model_type), known)}"
    )


def _language_tensors(
    tensors: Sequence[PlannedTensor], family: Family, config: Values
) -> tuple[list[PlannedTensor], list[str]]:
    """The tensors of the language model under the names that it has alone, and a word about those left behind."""
    language: list[PlannedTensor] = []
    others = unknown = 0
    buffers = tuple(weight.name.partition("{layer}")[2] for weight in family.layer if weight.is_buffer)
    if family.prediction_names:
        layers = family.layer_count(config, [each.name for each in tensors])
        tensors = [each.renamed(layer_name(each.name, family, layers)) for each in tensors]
    roles = family.tensors(config, [each.name for each in tensors])
    sides = [role.name for role in roles if role.module and not role.is_known]
    towers = {name for name in sides if not name.startswith(_PREDICTING)}
    for each in tensors:
        if each.name in towers or each.name.startswith(_TOWERS):
            others += 1
        elif each.name.startswith(gguf_of(family).left_out):
            unknown += 1
        elif not each.name.endswith(buffers):
            language.append(each.renamed(family.translate(each.name, family.namings[0])))
    notes = []
    if others:
        notes.append(f"{others} tensors of the vision model are left out: only the language model is converted")
    if unknown:
        notes.append(f"{unknown} tensors are left out: llama.cpp has no names for them in {gguf_of(family).name}")
    return language, notes


def _decide_head(family: Family, matches: list[Match], is_tied: bool, where: str) -> tuple[list[Match], dict[str, Any]]:
    """The tensors to write. A head that is the embedding is left out, or added where llama.cpp wants it."""
    head = next((match for match in matches if match.pair.gguf_name == HEAD), None)
    if not is_tied:
        if head is None or gguf_of(family).never_has_output:
            name = family.namings[0].expand(family.by_gguf_name[HEAD].name)
            problem = (
                f"tensor {name!r} is missing" if head is None else f"llama.cpp has no {name!r} for {family.model_type}"
            )
            raise UsageError(f"{where}: {problem}, but 'tie_word_embeddings' of config.json is false")
        return matches, {}
    without = [match for match in matches if match is not head]
    if gguf_of(family).has_output_when_tied:
        embedding = next(match for match in matches if match.pair.gguf_name == EMBEDDING)
        weight = family.by_gguf_name[HEAD]
        copy = replace(embedding.pair, weight=weight, gguf_name=str(weight.gguf))
        without.append(Match(copy, embedding.tensors))
    return without, {} if head is None else {TIED_HEAD_KEY: True}


def _planned(match: Match, config: Config, type_name: str | None) -> PlannedTensor:
    weight, parts = match.pair.weight, match.tensors
    type_names = {part.type_name for part in parts}
    own = "f32" if len(type_names) > 1 else _gguf_type(parts[0].name, type_names.pop())
    wanted = "f32" if weight.is_always_f32 else type_name or own
    is_stack = weight.items is not None

    def make() -> Tensor:
        values = [to_gguf(part.make(), weight, config) for part in parts]
        values = [value if value.type_name == wanted else value.to(wanted) for value in values]
        value = stacked(values) if is_stack else values[0]
        return value if value.shape == shape else reshaped(value, shape)

    own_shape = parts[0].shape[::-1] if weight.is_transposed else parts[0].shape
    shape = (len(parts), *own_shape) if is_stack else own_shape
    if weight.gguf_shape is not None:
        shape = match.pair.gguf_shape
    return PlannedTensor(match.pair.gguf_name, wanted, shape, make)


def _gguf_type(name: str, type_name: str) -> str:
    """The type in which GGUF holds a tensor: its own if llama.cpp computes with it, else one that holds its values."""
    if type_name in FLOAT_TYPES or (type_name in GGML_TYPES and type_name not in DTYPES):
        return type_name
    dtype = DTYPES.get(type_name)
    if dtype is None or dtype.name == "f64":
        return "f32"
    if not dtype.is_float:
        raise UsageError(f"tensor {name!r} is {type_name}; expected floating-point weights")
    return "bf16"


def _hf_type(planned: PlannedTensor) -> str:
    """The type that the tensor has when it comes back."""
    return planned.type_name if planned.type_name in DTYPES else "bf16"


def _rope_tensors(rope: Config, config: Config) -> list[PlannedTensor]:
    if rope.get("rope_type") == "llama3":
        return [_vector(ROPE_FREQUENCIES, llama3_factors(rope, rotated_elements(config, rope)))]
    if rope.get("rope_type") == "proportional":
        return [_vector(ROPE_FREQUENCIES, proportional_factors(rope, config.count("global_head_dim")))]
    if rope.get("rope_type") == "longrope":
        count = rotated_elements(config, rope) // 2
        factors = ((LONG_FACTORS, "long_factor"), (SHORT_FACTORS, "short_factor"))
        return [_vector(name, longrope_factors(rope, key, count)) for name, key in factors]
    return []


def _vector(name: str, values: npt.NDArray[np.float32]) -> PlannedTensor:
    return PlannedTensor.of(name, tensor(values))


def _rests(matches: Sequence[Match], config: Config) -> dict[str, Any]:
    """What rounding loses of values that a formula changes, for tensors that would not come back as they were."""
    rests: dict[str, Any] = {}
    for match in matches:
        weight = match.pair.weight
        if not weight.adds_one and not weight.is_log:
            continue
        stored = match.tensors[0].make()
        if not stored.is_view:
            continue
        back = to_hf(to_gguf(stored, weight, config).realize(), weight, config).to("f64")
        if (back.to(stored.type_name) != stored).any():
            rest = stored.to("f64") - back
            rests[NORM_REST_PREFIX + match.pair.gguf_name] = rest.to("f32").numpy().reshape(-1)
    return rests


def _tokenizer_metadata(contents: Contents, where: str) -> Mapping[str, Any]:
    if contents.directory is None:
        raise UsageError(f"{where}: has no directory with tokenizer files; give tokenizer_metadata")
    from lbrx.models.tokenizers.to_gguf import gguf_tokenizer_metadata

    return gguf_tokenizer_metadata(contents.directory, contents.config or {})


def _check_vocabulary(metadata: Mapping[str, Any], rows: int, where: str) -> None:
    tokens = metadata.get("tokenizer.ggml.tokens")
    listed = getattr(tokens, "value", tokens)
    if listed is not None and len(listed) != rows:
        raise UsageError(
            f"{where}: the tokenizer has {len(listed)} tokens, but the embedding {rows} rows; expected as many"
        )


def _model_name(contents: Contents, config: Config) -> str:
    given = str(config.get("_name_or_path") or "").rstrip("/").rpartition("/")[2]
    return given or ("model" if contents.directory is None else contents.directory.resolve().name)
