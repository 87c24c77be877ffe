"""A GGUF model as a Hugging Face one: the inverse of ``hf_to_gguf``, also for files of llama.cpp."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import FormatError
from lbrx.files.output.contents import Contents, PlannedTensor
from lbrx.files.output.plan import SideFile
from lbrx.jobs.convert.gguf_config import made_config, stored_config, stored_dtypes, with_dtype
from lbrx.jobs.convert.gguf_metadata import (
    CONFIG_KEY,
    DTYPE_KEY,
    DTYPES_KEY,
    NORM_REST_PREFIX,
    TIED_HEAD_KEY,
    main_type,
)
from lbrx.jobs.convert.matching import Match, match_tensors, rule_uses
from lbrx.models.architectures.dimensions import ConfigValues, Dimensions
from lbrx.models.architectures.gguf_families import Family, Rule, family_of_gguf
from lbrx.models.architectures.rope import LONG_FACTORS, ROPE_FREQUENCIES, SHORT_FACTORS
from lbrx.models.architectures.value_changes import stack_part
from lbrx.tensors.dtype import DTYPES, dtype
from lbrx.tensors.tensor import Tensor, tensor

_EMBEDDING, _HEAD = "token_embd.weight", "output.weight"
_ROPE_TENSORS = (ROPE_FREQUENCIES, LONG_FACTORS, SHORT_FACTORS)
_NO_TOKENIZERS = (None, "none", "no_vocab")


def gguf_to_hf(contents: Contents, *, type_name: str | None = None, keep_quantized: bool = False) -> Contents:
    """The Hugging Face form of a GGUF model, ready to be written.

    Tensors get the types that they had before the file was made where it tells, else that of its matrices (bf16 where
    those are quantized), or ``type_name``. With ``keep_quantized`` blocks of ggml stay what they are, under the names
    and with the rows of Hugging Face; SafeTensors files cannot hold them, but what is made from this can.

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
        family = family_of_gguf(metadata, where)
        config, notes = made_config(family, metadata, contents.by_name, where)
        warnings += notes
        if CONFIG_KEY in metadata:
            warnings.append(f"{where}: its key-values were changed; config.json is made from them, not the stored one")
    settings = ConfigValues(config, family.defaults, where)
    sizes = Dimensions.of(settings, family.is_mixture)
    matches = match_tensors(
        rule_uses(family, sizes),
        {each.name: each for each in contents.tensors if each.name not in _ROPE_TENSORS},
        names_of=lambda use: (use.gguf_name,),
        shape_of=lambda rule: _gguf_shape(rule, sizes),
        where=where,
    )
    types = _Types.of(contents, type_name, keep_quantized, where)
    making = _Making(family, sizes, types, metadata)
    tensors = tuple(making.all(matches, is_tied=bool(settings.get("tie_word_embeddings"))))
    return Contents(
        "safetensors",
        tensors,
        {"format": "pt"},
        with_dtype(config, main_type(tensors)),
        _tokenizer_files(metadata),
        contents.sources,
        warnings=tuple(warnings),
    )


def _gguf_shape(rule: Rule, sizes: Dimensions) -> tuple[int, ...]:
    shape = sizes.shape(rule.shape)
    return (sizes.experts, *shape) if rule.is_stack else shape


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

    def of_tensor(self, name: str, rule: Rule, own: str) -> str:
        if own not in DTYPES and self.keep_quantized:
            return own
        if self.is_fixed or own not in DTYPES or rule.is_always_f32:
            return self.others.get(name, self.usual)
        return own


@dataclass(frozen=True, slots=True)
class _Making:
    """Builds the tensors of the Hugging Face model."""

    family: Family
    sizes: Dimensions
    types: _Types
    metadata: Mapping[str, Any]

    def all(self, matches: list[Match], *, is_tied: bool) -> Iterator[PlannedTensor]:
        has_head = not is_tied or bool(self.metadata.get(TIED_HEAD_KEY))
        by_name = {match.use.gguf_name: match for match in matches}
        for match in matches:
            if match.use.gguf_name != _HEAD or has_head:
                yield from self._tensors(match)
        if has_head and _HEAD not in by_name:
            rule = next(rule for rule in self.family.rules if rule.gguf == _HEAD)
            embedding = next(self._tensors(by_name[_EMBEDDING]))
            yield embedding.renamed(rule.hf)

    def _tensors(self, match: Match) -> Iterator[PlannedTensor]:
        source, rule = match.tensors[0], match.use.rule
        for number, name in enumerate(match.use.hf_names):
            wanted = self.types.of_tensor(name, rule, source.type_name)
            make = self._maker(match, number if rule.is_stack else None, wanted)
            yield PlannedTensor(name, wanted, self.sizes.shape(rule.shape), make)

    def _maker(self, match: Match, number: int | None, wanted: str) -> Callable[[], Tensor]:
        source, change = match.tensors[0], match.use.rule.change
        rest = self.metadata.get(NORM_REST_PREFIX + match.use.gguf_name)
        shape = self.sizes.shape(match.use.rule.shape)

        def make() -> Tensor:
            value = source.make() if number is None else stack_part(source.make(), number)
            if change is not None:
                value = change.to_hf(value, self.sizes)
            if rest is not None:
                value = value + tensor(rest)
            value = value if value.shape == shape else value.reshape(shape)
            return value if value.type_name == wanted else value.to(wanted)

        return make


def _tokenizer_files(metadata: Mapping[str, Any]) -> tuple[SideFile, ...]:
    if metadata.get("tokenizer.ggml.model") in _NO_TOKENIZERS:
        return ()
    from lbrx.models.tokenizers.to_files import tokenizer_files

    return tokenizer_files(metadata)
