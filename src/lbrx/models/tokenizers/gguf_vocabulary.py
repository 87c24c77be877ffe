"""The tokenizer keys of a GGUF file, validated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import FormatError
from lbrx.files.formats.gguf_values import Typed
from lbrx.models.tokenizers.gguf_keys import ID_KEYS, PREFIX, RULES_KEY
from lbrx.models.tokenizers.kept_rules import KeptRules
from lbrx.models.tokenizers.pretokenizers import PreTokenizer, pre_tokenizer_named
from lbrx.models.tokenizers.records import TokenType, padding_text
from lbrx.models.tokenizers.specials import SpecialTokens

_TYPE_NAMES: dict[type, str] = {str: "text", bool: "true or false", int: "a whole number"}


@dataclass(frozen=True, slots=True)
class _Defaults:
    """What a tokenizer model has in llama.cpp if the file has no key for it."""

    ids: Mapping[str, int]
    adds_bos: bool = False
    adds_eos: bool = False
    adds_space_prefix: bool = False
    needs_scores: bool = False


_BERT_IDS = {"bos": 101, "unk": 100, "sep": 102, "pad": 0, "mask": 103}
_MODELS: dict[str, _Defaults] = {
    "gpt2": _Defaults({}),
    "llama": _Defaults({"bos": 1, "eos": 2, "unk": 0}, adds_bos=True, adds_space_prefix=True, needs_scores=True),
    "bert": _Defaults(_BERT_IDS, adds_bos=True, adds_eos=True),
    "t5": _Defaults({"eos": 1, "unk": 2, "pad": 0}, adds_eos=True, needs_scores=True),
    "gemma4": _Defaults({}, adds_bos=True),
    "rwkv": _Defaults({}),
}


@dataclass(frozen=True, eq=False)
class GgufVocabulary:
    """The rows, the splitting rule (of BPE) and the special tokens of a GGUF file."""

    where: str
    model: str
    texts: list[str]
    types: list[int]
    scores: list[float]
    merges: Sequence[str]
    special: SpecialTokens
    pre: PreTokenizer | None
    adds_space_prefix: bool
    removes_spaces: bool = False
    lowercases: bool = True
    strips_accents: bool = True
    character_map: bytes = b""
    rules: KeptRules | None = None  # of a tokenizer whose rule has no name

    @cached_property
    def kept(self) -> dict[str, int]:
        """The ids of the tokens, without padding for unused ids."""
        return {
            text: token_id
            for token_id, text in enumerate(self.texts)
            if self.types[token_id] != TokenType.UNUSED or text != padding_text(token_id)
        }

    @cached_property
    def unknown(self) -> str | None:
        """The text of the unknown token."""
        types = self.types
        token_id = self.special.ids.get("unk")
        if token_id is None:
            token_id = next((number for number, each in enumerate(types) if each == TokenType.UNKNOWN), None)
        return None if token_id is None else self.texts[token_id]

    @property
    def added(self) -> list[int]:
        """The ids of the tokens that are matched in a text before it is split."""
        added_types = (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN)
        return [number for number, each in enumerate(self.types) if each in added_types]


def plain_values(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain values: those of a file have no type, those to be written may have one."""
    return {key: value.value if isinstance(value, Typed) else value for key, value in metadata.items()}


def read_vocabulary(values: Mapping[str, Any], where: str) -> GgufVocabulary:
    """Return the vocabulary in the plain key-values of a GGUF file."""
    model = values.get(PREFIX + "model")
    if model not in _MODELS:
        described = "no tokenizer" if model is None else f"a tokenizer of model {model!r}"
        raise FormatError(f"{where}: has {described}, expected one of {', '.join(_MODELS)} as {PREFIX}model")
    defaults = _MODELS[model]
    texts = list(values.get(PREFIX + "tokens") or ())
    _check_texts(texts, where)
    types = _column(values, "token_type", [int(TokenType.NORMAL)] * len(texts), where)
    scores = _column(values, "scores", [0.0] * len(texts), where)
    name = _typed(values, "pre", str, "default", where) or "default"
    pre = pre_tokenizer_named("gemma4" if model == "gemma4" else name, where) if model in ("gpt2", "gemma4") else None
    if defaults.needs_scores and PREFIX + "scores" not in values:
        raise FormatError(f"{where}: has no {PREFIX}scores, expected one for each of the {len(texts)} tokens")
    lowercases = bool(_typed(values, "normalizer.lowercase", bool, True, where))
    return GgufVocabulary(
        where,
        model,
        texts,
        types,
        scores,
        merges=list(values.get(PREFIX + "merges") or ()),
        special=_special(values, defaults, len(texts), where, adds_bos=defaults.adds_bos or bool(pre and pre.adds_bos)),
        pre=pre,
        adds_space_prefix=bool(_typed(values, "add_space_prefix", bool, defaults.adds_space_prefix, where)),
        removes_spaces=bool(_typed(values, "remove_extra_whitespaces", bool, False, where)),
        lowercases=lowercases,
        strips_accents=bool(_typed(values, "normalizer.strip_accents", bool, lowercases, where)),
        character_map=_character_map(values, where),
        rules=KeptRules.parse(values.get(RULES_KEY), f"{where}: {RULES_KEY}") if model == "gpt2" else None,
    )


def _character_map(values: Mapping[str, Any], where: str) -> bytes:
    value = values.get(PREFIX + "precompiled_charsmap")
    if value is None:
        return b""
    array = np.asarray(value)
    if array.ndim != 1 or array.dtype not in (np.uint8, np.int8):
        raise FormatError(f"{where}: {PREFIX}precompiled_charsmap is {value!r:.60}, expected an array of bytes")
    return array.tobytes()


def _check_texts(texts: Sequence[str], where: str) -> None:
    if not texts:
        raise FormatError(f"{where}: has no {PREFIX}tokens")
    seen: dict[str, int] = {}
    for token_id, text in enumerate(texts):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise FormatError(f"{where}: token {token_id} ({text!r}) is not valid UTF-8") from error
        other = seen.setdefault(text, token_id)
        if other != token_id:
            raise FormatError(f"{where}: token {text!r} has both id {other} and id {token_id}")


def _column(values: Mapping[str, Any], name: str, default: list[Any], where: str) -> list[Any]:
    values_of_key = values.get(PREFIX + name)
    if values_of_key is None:
        return default
    column: list[Any] = np.asarray(values_of_key).tolist()
    if len(column) != len(default):
        raise FormatError(f"{where}: {PREFIX}{name} has {len(column)} values for {len(default)} tokens")
    return column


def _typed(values: Mapping[str, Any], name: str, value_type: type, default: Any, where: str) -> Any:
    """Return the value of a key, checked to have this type, or the default."""
    value = values.get(PREFIX + name, default)
    if value is not None and type(value) is not value_type:
        raise FormatError(f"{where}: {PREFIX}{name} is {value!r:.60}, expected {_TYPE_NAMES[value_type]}")
    return value


def _special(values: Mapping[str, Any], defaults: _Defaults, size: int, where: str, *, adds_bos: bool) -> SpecialTokens:
    ids: dict[str, int] = {}
    for role, name in ID_KEYS.items():
        token_id = _typed(values, f"{name}_token_id", int, defaults.ids.get(role), where)
        if token_id is not None and 0 <= token_id < size:
            ids[role] = token_id
    if defaults.ids is _BERT_IDS and "sep" in ids:
        ids.setdefault("eos", ids["sep"])
    add_bos = bool(_typed(values, "add_bos_token", bool, adds_bos, where)) and "bos" in ids
    add_eos = bool(_typed(values, "add_eos_token", bool, defaults.adds_eos, where)) and "eos" in ids
    return SpecialTokens(ids, add_bos, add_eos, _typed(values, "add_sep_token", bool, None, where))
