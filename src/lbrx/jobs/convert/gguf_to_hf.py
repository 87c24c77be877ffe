"""A GGUF model as a Hugging Face one: the inverse of ``hf_to_gguf``, also for files of llama.cpp."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import FormatError, UsageError
from lbrx.files.output.contents import Contents, PlannedTensor
from lbrx.files.output.plan import SideFile
from lbrx.jobs.convert.gguf_metadata import (
    CONFIG_KEY,
    DTYPE_KEY,
    DTYPES_KEY,
    NORM_REST_PREFIX,
    TIED_HEAD_KEY,
    stored_config,
    stored_dtypes,
    with_dtype,
)
from lbrx.jobs.convert.matching import Match, match_tensors, tensor_pairs
from lbrx.jobs.convert.model_card import card_of
from lbrx.models.architectures.config import Config
from lbrx.models.architectures.family import Family
from lbrx.models.architectures.gguf_config import config_of_metadata
from lbrx.models.architectures.gguf_metadata import gguf_of, main_type, stored_prediction_count
from lbrx.models.architectures.layouts import joined
from lbrx.models.architectures.prediction import module_name
from lbrx.models.architectures.records import Weight
from lbrx.models.architectures.rope import ROPE_TENSORS
from lbrx.models.architectures.table import family_of_gguf, gguf_names
from lbrx.models.architectures.value_changes import reshaped, stack_part, to_hf
from lbrx.tensors.dtype import DTYPES, dtype
from lbrx.tensors.tensor import Tensor, tensor

GGUF_EMBEDDING, GGUF_HEAD = "token_embd.weight", "output.weight"
_NO_TOKENIZERS = (None, "none", "no_vocab")


def gguf_to_hf(contents: Contents, *, type_name: str | None = None, keep_quantized: bool = False) -> Contents:
    """The Hugging Face form of a GGUF model, ready to be written.

    Tensors get the types that they had before the file was made where it tells, else that of its matrices (bf16 where
    those are quantized), or ``type_name``. With ``keep_quantized`` blocks of ggml stay what they are, under the names
    and with the rows of Hugging Face; SafeTensors files cannot hold them, but what is made from this can. Joined
    tensors are separate then.

    >>> gguf_to_hf(Contents("gguf", (), {"general.architecture": "rwkv6"}))
    Traceback (most recent call last):
    lbrx.errors.UsageError: the model: general.architecture is 'rwkv6', which cannot be converted; expected one of ...
    """
    where = str(contents.sources[0].path) if contents.sources else "the model"
    metadata = contents.metadata
    stored = stored_config(metadata, where)
    warnings = list(contents.warnings)
    if stored is not None:
        family, config = stored
    else:
        family = find_gguf_family(metadata, where)
        if gguf_of(family).is_encoder:
            raise UsageError(f"{where}: has no config of lbrx, without which a {family.name} cannot be converted back")
        config, notes = config_of_metadata(family, metadata, contents.by_name, where)
        warnings += notes
        if CONFIG_KEY in metadata:
            warnings.append(f"{where}: its key-values were changed; config.json is made from them, not the stored one")
    if gguf_of(family).is_encoder:
        return _encoder(contents, family, config, type_name, where)
    settings = family.whole_config(config, contents.by_name.keys(), f"{where}: config.json")
    matches = match_tensors(
        tensor_pairs(family, settings, stored_prediction_count(family, metadata)),
        {each.name: each for each in contents.tensors if each.name not in ROPE_TENSORS},
        to_gguf=False,
        where=where,
    )
    types = _Types.of(contents, type_name, keep_quantized, where)
    tensors = tuple(_Making(family, settings, types, metadata).all(matches, is_tied=family.is_tied(config)))
    if not keep_quantized:
        tensors = joined(tensors, family, settings)
    if family.prediction_names:
        layers = family.layer_count(config)
        tensors = tuple(each.renamed(module_name(each.name, family, layers)) for each in tensors)
    return Contents(
        "safetensors",
        tensors,
        {"format": "pt"},
        with_dtype(config, main_type(tensors)),
        (*_tokenizer_files(metadata), *card_of(metadata)),
        contents.sources,
        warnings=tuple(warnings),
    )


def _encoder(
    contents: Contents, family: Family, config: Mapping[str, Any], type_name: str | None, where: str
) -> Contents:
    from lbrx.jobs.convert.encoders import encoder_to_hf

    usual = _Types.of(contents, type_name, False, where).usual
    made = encoder_to_hf(contents, family, config, usual, where)
    return replace(made, side_files=_tokenizer_files(contents.metadata))


def find_gguf_family(metadata: Mapping[str, Any], where: str) -> Family:
    """The family of a GGUF file that can be converted.

    >>> find_gguf_family({"general.architecture": "phi3"}, "a.gguf").name
    'phi3'
    """
    family = family_of_gguf(metadata)
    if family is not None:
        return family
    name = metadata.get("general.architecture")
    experts = " with experts" if metadata.get(f"{name}.expert_count") else ""
    raise UsageError(
        f"{where}: general.architecture is {name!r}{experts}, which cannot be converted; "
        f"expected one of {', '.join(gguf_names())}"
    )


@dataclass(frozen=True, slots=True)
class _Types:
    """Which type a tensor gets."""

    usual: str
    others: Mapping[str, str]
    is_fixed: bool  # all tensors get the usual type
    keep_quantized: bool

    @classmethod
    def of(cls, contents: Contents, type_name: str | None, keep_quantized: bool, where: str) -> _Types:
        if type_name is not None:
            return cls(dtype(type_name).name, {}, True, keep_quantized)
        usual = contents.metadata.get(DTYPE_KEY)
        if usual is None:
            main = main_type(contents.tensors)
            return cls(main if main in DTYPES else "bf16", {}, False, keep_quantized)
        if usual not in DTYPES:
            raise FormatError(f"{where}: key {DTYPE_KEY!r} is {usual!r:.60}; expected one of {', '.join(DTYPES)}")
        return cls(usual, stored_dtypes(contents.metadata.get(DTYPES_KEY), where), True, keep_quantized)

    def of_tensor(self, name: str, weight: Weight, own: str) -> str:
        if own not in DTYPES and self.keep_quantized:
            return own
        if self.is_fixed or own not in DTYPES or weight.is_always_f32:
            return self.others.get(name, self.usual)
        return own


@dataclass(frozen=True, slots=True)
class _Making:
    """Builds the tensors of the Hugging Face model."""

    family: Family
    config: Config
    types: _Types
    metadata: Mapping[str, Any]

    def all(self, matches: list[Match], *, is_tied: bool) -> Iterator[PlannedTensor]:
        has_head = not is_tied or bool(self.metadata.get(TIED_HEAD_KEY))
        by_name = {match.pair.weight.gguf: match for match in matches}
        for match in matches:
            if match.pair.weight.gguf != GGUF_HEAD or has_head:
                yield from self._tensors(match)
        if has_head and GGUF_HEAD not in by_name:
            yield next(self._tensors(by_name[GGUF_EMBEDDING])).renamed(self._head_name)

    @property
    def _head_name(self) -> str:
        return self.family.namings[0].expand(self.family.by_gguf_name[GGUF_HEAD].name)

    def _tensors(self, match: Match) -> Iterator[PlannedTensor]:
        source, pair = match.tensors[0], match.pair
        for number, name in enumerate(pair.hf_names):
            wanted = self.types.of_tensor(name, pair.weight, source.type_name)
            make = self._maker(match, None if pair.weight.items is None else number, wanted)
            yield PlannedTensor(name, wanted, pair.shape, make)

    def _maker(self, match: Match, number: int | None, wanted: str) -> Callable[[], Tensor]:
        source, pair = match.tensors[0], match.pair
        rest = self.metadata.get(NORM_REST_PREFIX + pair.gguf_name)

        def make() -> Tensor:
            value = source.make() if number is None else stack_part(source.make(), number)
            value = to_hf(value, pair.weight, self.config)
            value = value if value.shape == pair.shape else reshaped(value, pair.shape)
            if rest is not None:
                value = value + tensor(rest).reshape(pair.shape)
            return value if value.type_name == wanted else value.to(wanted)

        return make


def _tokenizer_files(metadata: Mapping[str, Any]) -> tuple[SideFile, ...]:
    if metadata.get("tokenizer.ggml.model") in _NO_TOKENIZERS:
        return ()
    from lbrx.models.tokenizers.to_files import tokenizer_files

    return tokenizer_files(metadata)
