"""The tokenizer keys of a GGUF file, validated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import FormatError
from lbrx.files.formats.gguf_values import Typed
from lbrx.models.tokenizers.pretokenizers import PreTokenizer, pre_tokenizer_named
from lbrx.models.tokenizers.records import TokenType, padding_text
from lbrx.models.tokenizers.specials import SpecialTokens
from lbrx.models.tokenizers.to_gguf import ID_KEYS

_PREFIX = "tokenizer.ggml."
_MODELS = ("gpt2", "llama")
_TYPE_NAMES: dict[type, str] = {str: "text", bool: "true or false", int: "a whole number"}
_DEFAULT_IDS = {"llama": {"bos": 1, "eos": 2, "unk": 0}, "gpt2": {}}


@dataclass(frozen=True, eq=False)
class GgufVocabulary:
    """The rows, the pre-tokenizer (of ``gpt2``) and the special tokens of a GGUF file."""

    where: str
    model: str
    texts: list[str]
    types: list[int]
    scores: list[float]
    merges: Sequence[str]
    special: SpecialTokens
    pre: PreTokenizer | None
    adds_space_prefix: bool

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
    model = values.get(_PREFIX + "model")
    if model not in _MODELS:
        described = "no tokenizer" if model is None else f"a tokenizer of model {model!r}"
        raise FormatError(f"{where}: has {described}, expected {' or '.join(_MODELS)} as {_PREFIX}model")
    texts = list(values.get(_PREFIX + "tokens") or ())
    _check_texts(texts, where)
    types = _column(values, "token_type", [int(TokenType.NORMAL)] * len(texts), where)
    scores = _column(values, "scores", [0.0] * len(texts), where)
    name = _typed(values, "pre", str, "default", where) or "default"
    pre = pre_tokenizer_named(name, where) if model == "gpt2" else None
    if model == "llama" and _PREFIX + "scores" not in values:
        raise FormatError(f"{where}: has no {_PREFIX}scores, expected one for each of the {len(texts)} tokens")
    merges = list(values.get(_PREFIX + "merges") or ())
    special = _special(values, model, len(texts), where, adds_bos=pre.adds_bos if pre is not None else True)
    adds_prefix = bool(_typed(values, "add_space_prefix", bool, model == "llama", where))
    return GgufVocabulary(where, model, texts, types, scores, merges, special, pre, adds_prefix)


def _check_texts(texts: Sequence[str], where: str) -> None:
    if not texts:
        raise FormatError(f"{where}: has no {_PREFIX}tokens")
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
    values_of_key = values.get(_PREFIX + name)
    if values_of_key is None:
        return default
    column: list[Any] = np.asarray(values_of_key).tolist()
    if len(column) != len(default):
        raise FormatError(f"{where}: {_PREFIX}{name} has {len(column)} values for {len(default)} tokens")
    return column


def _typed(values: Mapping[str, Any], name: str, value_type: type, default: Any, where: str) -> Any:
    """Return the value of a key, checked to have this type, or the default."""
    value = values.get(_PREFIX + name, default)
    if value is not None and type(value) is not value_type:
        raise FormatError(f"{where}: {_PREFIX}{name} is {value!r:.60}, expected {_TYPE_NAMES[value_type]}")
    return value


def _special(values: Mapping[str, Any], model: str, size: int, where: str, *, adds_bos: bool) -> SpecialTokens:
    ids: dict[str, int] = {}
    for role, name in ID_KEYS.items():
        token_id = _typed(values, f"{name}_token_id", int, _DEFAULT_IDS[model].get(role), where)
        if token_id is not None and 0 <= token_id < size:
            ids[role] = token_id
    add_bos = bool(_typed(values, "add_bos_token", bool, adds_bos, where)) and "bos" in ids
    add_eos = bool(_typed(values, "add_eos_token", bool, False, where)) and "eos" in ids
    return SpecialTokens(ids, add_bos, add_eos)
