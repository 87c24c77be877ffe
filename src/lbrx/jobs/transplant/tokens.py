"""Tokens of two tokenizers compared by their meaning.

``Ġhello`` of a byte-level tokenizer and ``▁hello`` of SentencePiece are the same text. Tokens with a role, such as the
end of a text, are equal if they have the same role, whatever they are called.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lbrx.base.fast_dataclass import dataclass
from lbrx.models.tokenizers.specials import read_settings
from lbrx.models.tokenizers.tiktoken import byte_letters
from lbrx.models.tokenizers.tokenizer_file import TokenizerFile

NO_ROW = -1
_ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE = "▁"

Rows = npt.NDArray[np.int64]


class Meaning(NamedTuple):
    """The meaning of a token: a role, one byte (of SentencePiece), or a text as bytes."""

    type: str  # "role", "byte" or "text"
    value: bytes

    @property
    def text(self) -> str | None:
        """The text, or None for a role and for a part of a character."""
        try:
            return None if self.type == "role" else self.value.decode()
        except UnicodeDecodeError:
            return None


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The tokens of a model that have rows, by id, with their meanings."""

    tokenizer: TokenizerFile
    rows: int
    meanings: Mapping[int, Meaning]

    @cached_property
    def ids(self) -> dict[Meaning, int]:
        """The row of each meaning."""
        return {meaning: token_id for token_id, meaning in self.meanings.items() if token_id < self.rows}

    @cached_property
    def texts(self) -> dict[bytes, int]:
        """The row of each text, those of tokens with a role included."""
        named = {token.encode(): token_id for token, token_id in self.tokenizer.ids.items() if token_id < self.rows}
        plain = {meaning.value: token_id for meaning, token_id in self.ids.items() if meaning.type == "text"}
        roles = {token: token_id for token, token_id in named.items() if self.meanings[token_id].type == "role"}
        return roles | plain


def read_vocabulary(tokenizer: TokenizerFile, directory: Path, rows: int) -> Vocabulary:
    """Return the meanings of the tokens of a tokenizer; settings in the directory say which have roles."""
    document = json.loads(tokenizer.text)
    roles = _roles(read_settings(directory))
    decode = _decoder_of(document)
    meanings: dict[int, Meaning] = {}
    for token, token_id in tokenizer.ids.items():
        if token in roles:
            meanings[token_id] = Meaning("role", roles[token].encode())
        else:
            meanings[token_id] = Meaning("text", token.encode()) if token in tokenizer.added else decode(token)
    return Vocabulary(tokenizer, rows, meanings)


def _roles(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the role of each token that has one, the first one of several."""
    roles: dict[str, str] = {}
    for role in _ROLES:
        token = settings.get(f"{role}_token")
        content = token.get("content") if isinstance(token, Mapping) else token
        if isinstance(content, str) and content:
            roles.setdefault(content, role)
    return roles


def _decoder_of(document: Mapping[str, Any]) -> Any:
    """Return the function from a token of the tokenizer's model to its meaning."""
    types = {step.get("type") for part in ("pre_tokenizer", "decoder") for step in _steps(document.get(part))}
    if "ByteLevel" in types:
        letters = {letter: value for value, letter in enumerate(byte_letters())}

        def decode_letters(token: str) -> Meaning:
            known = all(letter in letters for letter in token)
            return Meaning("text", bytes(letters[letter] for letter in token) if known else token.encode())

        return decode_letters

    def decode_pieces(token: str) -> Meaning:
        found = _BYTE.fullmatch(token)
        if found:
            return Meaning("byte", bytes([int(found[1], 16)]))
        return Meaning("text", token.replace(_SPACE, " ").encode())

    return decode_pieces


def _steps(part: Any) -> Iterator[Mapping[str, Any]]:
    """Yield a step of a tokenizer.json and the steps inside of it."""
    if not isinstance(part, Mapping):
        return
    yield part
    for key in ("pretokenizers", "decoders", "normalizers"):
        for step in part.get(key) or ():
            yield from _steps(step)


@dataclass(frozen=True, eq=False)
class Matches:
    """For every row of the output where it comes from.

    ``own_rows`` has the row of the model, or NO_ROW. ``new_ids`` are the tokens whose rows must be made; other ids
    without a row stay zero. ``shared`` pairs donor ids with rows of the model for tokens of exactly the same meaning.
    """

    size: int
    own_rows: Rows
    new_ids: Rows
    shared_donor: Rows
    shared_own: Rows
    unknown: int  # tokens without a row in the donor's embedding and the model

    @property
    def copied(self) -> int:
        return int((self.own_rows != NO_ROW).sum())


def match(own: Vocabulary, donor: Vocabulary, *, takes_prefixes: bool) -> Matches:
    """Find the rows of the donor's tokens in the model."""
    size = donor.tokenizer.end
    own_rows, new, unknown = np.full(size, NO_ROW, np.int64), [], 0
    for token_id, meaning in sorted(donor.meanings.items()):
        row = _row_of(own, donor, token_id, meaning, takes_prefixes)
        if row is not None:
            own_rows[token_id] = row
        elif token_id < donor.rows:
            new.append(token_id)
        else:
            unknown += 1
    shared = sorted((donor_id, own.ids[meaning]) for meaning, donor_id in donor.ids.items() if meaning in own.ids)
    pairs = np.array(shared, np.int64).reshape(-1, 2)
    return Matches(size, own_rows, np.array(new, np.int64), pairs[:, 0].copy(), pairs[:, 1].copy(), unknown)


def _row_of(own: Vocabulary, donor: Vocabulary, token_id: int, meaning: Meaning, takes_prefixes: bool) -> int | None:
    row = own.ids.get(meaning)
    if row is not None:
        return row
    if meaning.type == "role":
        return own.texts.get(_name_of(donor, token_id).encode())
    if len(meaning.value) == 1:  # a byte of SentencePiece, and the letter or byte of another tokenizer
        other = "text" if meaning.type == "byte" else "byte"
        row = own.ids.get(Meaning(other, meaning.value))
    if row is None and meaning.type == "text":
        row = own.texts.get(meaning.value)
    if row is None and takes_prefixes and meaning.type == "text":
        return _prefix_row(own, meaning.value)
    return row


def _prefix_row(own: Vocabulary, text: bytes) -> int | None:
    """Return the row of the longest token that a text begins with; white space alone does not count."""
    for end in range(len(text) - 1, 0, -1):
        if not text[:end].strip():
            return None
        row = own.ids.get(Meaning("text", text[:end]))
        if row is not None:
            return row
    return None


def _name_of(vocabulary: Vocabulary, token_id: int) -> str:
    return next(token for token, number in vocabulary.tokenizer.ids.items() if number == token_id)
