"""A Hugging Face model as a GGUF one: names, order of rows, stacks of experts, key-values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.errors import UsageError
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
    model_metadata,
    rotated_elements,
    source_metadata,
    text_config,
)
from lbrx.jobs.convert.matching import Match, match_tensors, rule_uses
from lbrx.models.architectures.dimensions import ConfigValues, Dimensions
from lbrx.models.architectures.gguf_families import Family, family_of_config
from lbrx.models.architectures.rope import (
    LONG_FACTORS,
    ROPE_FREQUENCIES,
    SHORT_FACTORS,
    llama3_factors,
    longrope_factors,
    rope_settings,
)
from lbrx.models.architectures.value_changes import stacked
from lbrx.tensors.dtype import DTYPES
from lbrx.tensors.tensor import Tensor, tensor

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
_TEXT_PREFIXES = (("language_model.model.", "model."), ("model.language_model.", "model."), ("language_model.", ""))
_OTHER_MODULES = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.")
_BUFFERS = (".rotary_emb.inv_freq", ".masked_bias", ".attention.bias")


def hf_to_gguf(
    contents: Contents, *, tokenizer_metadata: Mapping[str, Any] | None = None, type_name: str | None = None
) -> Contents:
    """The GGUF form of a model, ready to be written; no weights are read but the norms of Gemma.

    ``type_name`` (f32, f16 or bf16) is the type of matrices, by default their own; vectors, norms and routers are f32,
    as llama.cpp wants them. ``tokenizer_metadata`` are the key-values ``tokenizer.*``, by default made from the
    tokenizer files of the model's directory.

    >>> import lbrx
    >>> hf_to_gguf(Contents("safetensors", (), config={"model_type": "bert"}))
    Traceback (most recent call last):
    lbrx.errors.UsageError: the model: the model_type of config.json is 'bert', which cannot be converted; expected ...
    """
    where = "the model" if contents.directory is None else str(contents.directory)
    if type_name is not None and type_name not in FLOAT_TYPES:
        raise UsageError(f"{type_name!r} is not a plain type of GGUF; expected one of {', '.join(FLOAT_TYPES)}")
    family = family_of_config(contents.config, where)
    assert contents.config is not None
    settings = ConfigValues(contents.config, family.defaults, where)
    sizes, rope = Dimensions.of(settings, family.is_mixture), rope_settings(settings)
    check_supported(family, settings)
    described = model_metadata(family, settings, sizes, rope)
    tensors, lost = _language_tensors(contents.tensors)
    matches = match_tensors(
        rule_uses(family, sizes),
        {each.name: each for each in tensors},
        names_of=lambda use: use.hf_names,
        shape_of=lambda rule: sizes.shape(rule.shape),
        where=where,
    )
    matches, head_metadata = _decide_head(family, matches, settings)
    planned = [*_rope_tensors(rope, sizes), *(_planned(match, sizes, type_name) for match in matches)]
    vocabulary = tokenizer_metadata if tokenizer_metadata is not None else _tokenizer_metadata(contents, where)
    _check_vocabulary(vocabulary, sizes, where)
    metadata = {
        **general_metadata(family, planned, _model_name(contents, settings), sizes),
        **described,
        **vocabulary,
        **source_metadata(text_config(contents.config, family), {each.name: _hf_type(each) for each in tensors}),
        **head_metadata,
        **_norm_rests(matches),
    }
    return Contents(
        "gguf",
        tuple(planned),
        GgufMetadata(typed_metadata(metadata)),
        sources=contents.sources,
        directory=contents.directory,
        warnings=(*contents.warnings, *lost, *differences(family, settings, sizes, rope)),
    )


def _language_tensors(tensors: Sequence[PlannedTensor]) -> tuple[list[PlannedTensor], list[str]]:
    """The tensors of the language model under the names that it has alone, and a word about those left behind."""
    language: list[PlannedTensor] = []
    others = 0
    for each in tensors:
        if each.name.startswith(_OTHER_MODULES):
            others += 1
        elif not each.name.endswith(_BUFFERS):
            language.append(each.renamed(_text_name(each.name)))
    return language, [f"{others} tensors of the vision model are left out: only the language model is converted"] * (
        others > 0
    )


def _text_name(name: str) -> str:
    for prefix, short in _TEXT_PREFIXES:
        if name.startswith(prefix):
            return short + name.removeprefix(prefix)
    return name


def _decide_head(family: Family, matches: list[Match], settings: ConfigValues) -> tuple[list[Match], dict[str, Any]]:
    """The tensors to write. A head that is the embedding is left out, or added where llama.cpp wants it."""
    head = next((match for match in matches if match.use.rule.hf == HEAD), None)
    if not settings.get("tie_word_embeddings"):
        if head is None or family.never_has_output:
            problem = (
                f"tensor {HEAD!r} is missing" if head is None else f"llama.cpp has no {HEAD!r} for {family.model_type}"
            )
            raise UsageError(f"{settings.where}: {problem}, but 'tie_word_embeddings' of config.json is false")
        return matches, {}
    without = [match for match in matches if match is not head]
    if family.has_output_when_tied:
        embedding = next(match for match in matches if match.use.rule.hf == EMBEDDING)
        rule = next(rule for rule in family.rules if rule.hf == HEAD)
        copy = replace(embedding.use, rule=rule, gguf_name=rule.gguf)
        without.append(Match(copy, embedding.tensors))
    return without, {} if head is None else {TIED_HEAD_KEY: True}


def _planned(match: Match, sizes: Dimensions, type_name: str | None) -> PlannedTensor:
    rule, parts = match.use.rule, match.tensors
    type_names = {part.type_name for part in parts}
    own = "f32" if len(type_names) > 1 else _gguf_type(parts[0].name, type_names.pop())
    wanted = "f32" if rule.is_always_f32 else type_name or own

    def make() -> Tensor:
        values = [part.make() for part in parts]
        if rule.change is not None:
            values = [rule.change.to_gguf(value, sizes) for value in values]
        values = [value if value.type_name == wanted else value.to(wanted) for value in values]
        return stacked(values) if rule.is_stack else values[0]

    shape = (len(parts), *parts[0].shape) if rule.is_stack else parts[0].shape
    return PlannedTensor(match.use.gguf_name, wanted, shape, make)


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


def _rope_tensors(rope: ConfigValues, sizes: Dimensions) -> list[PlannedTensor]:
    if rope.get("rope_type") == "llama3":
        return [_vector(ROPE_FREQUENCIES, llama3_factors(rope, sizes.head))]
    if rope.get("rope_type") == "longrope":
        count = rotated_elements(sizes, rope) // 2
        factors = ((LONG_FACTORS, "long_factor"), (SHORT_FACTORS, "short_factor"))
        return [_vector(name, longrope_factors(rope, key, count)) for name, key in factors]
    return []


def _vector(name: str, values: npt.NDArray[np.float32]) -> PlannedTensor:
    return PlannedTensor.of(name, tensor(values))


def _norm_rests(matches: Sequence[Match]) -> dict[str, Any]:
    """What f32 cannot hold of 1 + weight, for norms that would not come back as they were."""
    rests: dict[str, Any] = {}
    for match in matches:
        if match.use.rule.change is None or match.use.rule.change.is_exact:
            continue
        stored = match.tensors[0].make()
        if not stored.is_view:
            continue
        weights = stored.numpy().astype(np.float64)
        rest = weights - ((weights.astype(np.float32) + np.float32(1)).astype(np.float64) - 1)
        if rest.any():
            rests[NORM_REST_PREFIX + match.use.gguf_name] = rest.astype(np.float32)
    return rests


def _tokenizer_metadata(contents: Contents, where: str) -> Mapping[str, Any]:
    if contents.directory is None:
        raise UsageError(f"{where}: has no directory with tokenizer files; give tokenizer_metadata")
    from lbrx.models.tokenizers.to_gguf import gguf_tokenizer_metadata

    return gguf_tokenizer_metadata(contents.directory, contents.config or {})


def _check_vocabulary(metadata: Mapping[str, Any], sizes: Dimensions, where: str) -> None:
    tokens = metadata.get("tokenizer.ggml.tokens")
    listed = getattr(tokens, "value", tokens)
    if listed is not None and len(listed) != sizes.vocab:
        raise UsageError(
            f"{where}: the tokenizer has {len(listed)} tokens, but the embedding {sizes.vocab} rows; expected as many"
        )


def _model_name(contents: Contents, settings: ConfigValues) -> str:
    given = str(settings.get("_name_or_path") or "").rstrip("/").rpartition("/")[2]
    return given or ("model" if contents.directory is None else contents.directory.resolve().name)
