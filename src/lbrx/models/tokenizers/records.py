"""The vocabulary of a GGUF file: one row per id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import IntEnum

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import FormatError

MAX_TOKENS = 1 << 22  # the largest vocabularies have 2^18


class TokenType(IntEnum):
    """The type of a token. The numbers are those of GGUF and SentencePiece."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def padding_text(token_id: int) -> str:
    """Return the placeholder text for an id that has an embedding row but no token.

    >>> padding_text(7)
    '[PAD7]'
    """
    return f"[PAD{token_id}]"


def looks_special(text: str) -> bool:
    """Return whether a token is a control token in GGUF files although its tokenizer does not call it special.

    >>> [looks_special(text) for text in ("<|fim_prefix|>", "<tool_call>")]
    [True, False]
    """
    frames = (("<|", "|>"), ("<｜", "｜>"), ("<unused", ">"))
    return text in ("<pad>", "<mask>", "<2mass>", "[@BOS@]") or any(
        text.startswith(start) and text.endswith(end) for start, end in frames
    )


@dataclass(frozen=True, slots=True)
class AddedEntry:
    """A token that is matched in the text before it is split into pieces."""

    token_id: int
    content: str
    is_special: bool


@dataclass(slots=True)
class TokenTable:
    """Texts, types and scores of the ids 0, 1, ...; ids that are not set are unused.

    >>> table = TokenTable.of_size(2, "a model", lowest_score=-9.0)
    >>> table.put(0, "hello", TokenType.NORMAL, -1.0)
    >>> table.texts, [int(token_type) for token_type in table.types], table.scores
    (['hello', '[PAD1]'], [1, 5], [-1.0, -9.0])
    """

    label: str  # its name in messages
    texts: list[str]
    types: list[TokenType]
    scores: list[float]
    _ids: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of_size(cls, size: int, label: str, *, lowest_score: float = 0.0) -> TokenTable:
        if size > MAX_TOKENS:
            raise FormatError(f"{label}: has token ids up to {size - 1}, expected at most {MAX_TOKENS} tokens")
        texts = [padding_text(token_id) for token_id in range(size)]
        return cls(label, texts, [TokenType.UNUSED] * size, [lowest_score] * size)

    def __len__(self) -> int:
        return len(self.texts)

    def put(self, token_id: int, text: str, token_type: TokenType, score: float | None = None) -> None:
        """Set a row. Another text at the same id replaces the earlier one, as added tokens do."""
        if not 0 <= token_id < len(self.texts):
            raise FormatError(
                f"{self.label}: token {text!r} has id {token_id}, but the embedding has {len(self.texts)} rows"
            )
        if self._ids.get(self.texts[token_id]) == token_id:
            del self._ids[self.texts[token_id]]
        other = self._ids.get(text)
        if other is not None and other != token_id:
            raise FormatError(f"{self.label}: token {text!r} has both id {other} and id {token_id}")
        self._ids[text] = token_id
        self.texts[token_id] = text
        self.types[token_id] = token_type
        if score is not None:
            self.scores[token_id] = score

    def put_all(self, pieces: Mapping[str, int], token_type: TokenType) -> None:
        """Set the rows of an empty table; fast if no two tokens share an id."""
        ids = list(pieces.values())
        if self._ids or len(set(ids)) < len(ids) or (ids and not 0 <= min(ids) <= max(ids) < len(self.texts)):
            for text, token_id in pieces.items():
                self.put(token_id, text, token_type)
            return
        self._ids = dict(pieces)
        for text, token_id in pieces.items():
            self.texts[token_id] = text
            self.types[token_id] = token_type

    def find(self, text: str) -> int | None:
        """Return the id of a token, or None."""
        return self._ids.get(text)

    def check(self) -> None:
        """Raise if a token has the placeholder text of an unused id."""
        for text, token_id in self._ids.items():
            if text.startswith("[PAD") and self.texts.count(text) > 1:
                raise FormatError(f"{self.label}: token {text!r} at id {token_id} is the placeholder of an unused id")

    def put_added(self, entries: Sequence[AddedEntry], *, space: str | None = None) -> None:
        """Set the added tokens that have a row; ``space`` replaces spaces in plain ones."""
        for entry in entries:
            if entry.token_id >= len(self.texts):
                continue
            is_special = entry.is_special or looks_special(entry.content)
            text = entry.content if is_special or space is None else entry.content.replace(space, " ")
            self.put(entry.token_id, text, TokenType.CONTROL if is_special else TokenType.USER_DEFINED)
