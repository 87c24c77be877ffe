"""RWKV world tokenizers: byte strings, the longest that fits first.

A line of the vocabulary file has an id, a Python literal (text or bytes) and the number of bytes. A GGUF file has the
bytes with the escapes of Python. Id 0 begins and ends texts and is not in the file.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import FileError, FormatError
from lbrx.models.tokenizers.records import MAX_TOKENS, TokenTable, TokenType

if TYPE_CHECKING:
    from lbrx.models.tokenizers.gguf_vocabulary import GgufVocabulary

RWKV_NAME = "rwkv_vocab_v20230424.txt"
BOUNDARY = "<s>"
END_OF_TURN = "\\n\\n"  # as it is escaped in a file
MAX_TOKEN_BYTES = 1 << 10
_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_PLAIN = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}


def escaped(token: bytes) -> str:
    """Return the text of a token in a GGUF file.

    >>> print(escaped(b"a\\xff\\n"))
    a\\xff\\n
    """
    return repr(token)[2:-1]


def unescaped(text: str) -> bytes:
    """Return the bytes of a token in a GGUF file.

    >>> unescaped(escaped(bytes(range(256)))) == bytes(range(256))
    True
    """
    return _ESCAPE.sub(_replaced, text.encode())


def _replaced(match: re.Match[bytes]) -> bytes:
    code = match[1]
    if len(code) == 3:
        return bytes([int(code[1:], 16)])
    return _PLAIN.get(code, code)


def rwkv_table(path: Path, size: int | None) -> TokenTable:
    """Return the rows of a vocabulary file."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path}: cannot be read as text: {error}") from error
    tokens = [_token(line, f"{path}: line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    table = TokenTable.of_size(size or max((token_id for token_id, _ in tokens), default=0) + 1, str(path))
    table.put(0, BOUNDARY, TokenType.CONTROL)
    for token_id, token in tokens:
        table.put(token_id, escaped(token), TokenType.NORMAL)
    return table


def _token(line: str, where: str) -> tuple[int, bytes]:
    number, _, rest = line.strip().partition(" ")
    literal, _, length = rest.rpartition(" ")
    if not (number.isascii() and number.isdigit() and length.isascii() and length.isdigit()) or len(line) > 1 << 13:
        raise FormatError(f"{where} is {line!r:.80}, expected an id, a text and its length")
    if literal[:1] not in ("'", '"') and literal[:2] not in ("b'", 'b"'):
        raise FormatError(f"{where} has {literal!r:.80}, expected a text in quotes")
    try:
        value = ast.literal_eval(literal)
        token = value.encode() if isinstance(value, str) else bytes(value)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise FormatError(f"{where} has {literal!r:.80}, expected a text in quotes") from error
    token_id = int(number[:10])
    if len(token) != int(length[:10]) or not 0 < len(token) <= MAX_TOKEN_BYTES or not 0 < token_id < MAX_TOKENS:
        raise FormatError(f"{where} has token {token_id} of {len(token)} bytes, expected {length:.10}")
    return token_id, token


def vocabulary_lines(vocabulary: GgufVocabulary) -> str:
    """Return the content of the vocabulary file for a GGUF file."""
    lines = []
    for token_id, token_type in enumerate(vocabulary.types):
        if token_type != TokenType.NORMAL:
            continue
        token = unescaped(vocabulary.texts[token_id])
        try:
            literal = repr(token.decode())
        except UnicodeDecodeError:
            literal = repr(token)
        lines.append(f"{token_id} {literal} {len(token)}\n")
    return "".join(lines)


@dataclass(frozen=True, slots=True)
class Encoded:
    """The ids of a text, and for each the characters of the text from which it was made."""

    ids: list[int]
    offsets: list[tuple[int, int]]


class RwkvTokenizer:
    """Encodes texts with the methods that `tokenizers.Tokenizer` has."""

    def __init__(self, vocabulary: GgufVocabulary) -> None:
        where = vocabulary.where
        self._unknown = vocabulary.special.ids.get("unk", 0)
        self._bytes: list[bytes] = []
        self._special: dict[str, int] = {}
        self._ids: dict[bytes, int] = {}
        for token_id, (text, token_type) in enumerate(zip(vocabulary.texts, vocabulary.types, strict=True)):
            token = unescaped(text) if token_type != TokenType.UNUSED else b""
            if len(token) > MAX_TOKEN_BYTES:
                raise FormatError(f"{where}: token {token_id} has {len(token)} bytes, expected {MAX_TOKEN_BYTES}")
            if token_type in (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN):
                self._special[text] = token_id
                token = text.encode()
            elif token:
                self._ids.setdefault(token, token_id)
            self._bytes.append(token)
        lengths: dict[bytes, set[int]] = {}
        for token in self._ids:
            lengths.setdefault(token[:2], set()).add(len(token))
        self._lengths = {start: sorted(each, reverse=True) for start, each in lengths.items()}
        by_length = sorted(self._special, key=len, reverse=True)
        self._cut = re.compile("|".join(map(re.escape, by_length))) if by_length else None

    def token_to_id(self, text: str) -> int | None:
        """Return the id of a token, or None."""
        return self._special.get(text, self._ids.get(text.encode()))

    def id_to_token(self, token_id: int) -> str | None:
        """Return the text of a token, or None."""
        return self._bytes[token_id].decode(errors="replace") if token_id < len(self._bytes) else None

    def encode(self, text: str, *, add_special_tokens: bool = False) -> Encoded:
        """Return the ids of a text; special tokens that are written out become their ids."""
        del add_special_tokens  # which the caller adds
        ids: list[int] = []
        lengths: list[int] = []
        position = 0
        for match in self._cut.finditer(text) if self._cut else ():
            self._append(text[position : match.start()].encode(), ids, lengths)
            ids.append(self._special[match[0]])
            lengths.append(len(match[0].encode()))
            position = match.end()
        self._append(text[position:].encode(), ids, lengths)
        return Encoded(ids, _offsets(text.encode(), lengths))

    def _append(self, text: bytes, ids: list[int], lengths: list[int]) -> None:
        position, known = 0, self._ids
        while position < len(text):
            start = text[position : position + 2]
            for length in self._lengths.get(start, ()):
                token_id = known.get(text[position : position + length])
                if token_id is not None and position + length <= len(text):
                    break
            else:
                token_id, length = known.get(start[:1], self._unknown), 1
            ids.append(token_id)
            lengths.append(length)
            position += length

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of ids; bytes that are not UTF-8 become replacement characters."""
        special = set(self._special.values()) if skip_special_tokens else set()
        known = (number for number in ids if number < len(self._bytes) and number not in special)
        return b"".join(self._bytes[number] for number in known).decode(errors="replace")


def _offsets(text: bytes, lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Return the characters that hold consecutive pieces of a text, given the pieces' lengths in bytes.

    >>> _offsets("aé".encode(), [2, 1])
    [(0, 2), (1, 2)]
    """
    firsts = [0, *accumulate((byte & 0xC0) != 0x80 for byte in text)]  # characters that begin before a byte
    ends = list(accumulate(lengths))
    return [(firsts[end - length + 1] - 1, firsts[end]) for end, length in zip(ends, lengths, strict=True)]
