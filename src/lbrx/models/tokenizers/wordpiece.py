"""WordPiece (as in BERT) from tokenizer.json or vocab.txt to the rows of a GGUF file.

Files mark pieces inside a word by ``##``. GGUF files mark pieces at the start of a word by ``▁`` instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import FileError, FormatError
from lbrx.models.tokenizers.document import TokenizerDocument
from lbrx.models.tokenizers.records import AddedEntry, TokenTable, TokenType
from lbrx.models.tokenizers.sentencepiece import SPACE

VOCABULARY_NAME = "vocab.txt"
CONTINUED = "##"
MAX_WORD_LENGTH = 100  # characters; longer words are unknown
_SPECIAL_TEXTS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@dataclass(frozen=True, slots=True)
class Normalization:
    """What happens to letters before a word is looked up. ``strips_accents`` None follows ``lowercases``."""

    lowercases: bool
    strips_accents: bool | None


def gguf_text(piece: str, *, is_special: bool) -> str:
    """Return the text of a piece in a GGUF file.

    >>> [gguf_text(piece, is_special=False) for piece in ("play", "##ing")]
    ['▁play', 'ing']
    """
    if is_special:
        return piece
    return piece[len(CONTINUED) :] if piece.startswith(CONTINUED) else SPACE + piece


def wordpiece_text(text: str, *, is_special: bool) -> str:
    """Return the piece for a text in a GGUF file.

    >>> [wordpiece_text(text, is_special=False) for text in ("▁play", "ing")]
    ['play', '##ing']
    """
    if is_special:
        return text
    return text[len(SPACE) :] if text.startswith(SPACE) else CONTINUED + text


def wordpiece_table(document: TokenizerDocument, size: int) -> TokenTable:
    """Return the rows of a WordPiece tokenizer."""
    model = document.model
    if model.get("continuing_subword_prefix", CONTINUED) != CONTINUED:
        prefix = model["continuing_subword_prefix"]
        raise FormatError(f"{document.label}: marks pieces inside a word by {prefix!r}, expected {CONTINUED!r}")
    steps = document.content.get("pre_tokenizer") or {}
    if steps.get("type") != "BertPreTokenizer":
        raise FormatError(
            f"{document.label}: splits words by {steps.get('type')}, expected BertPreTokenizer, as llama.cpp does"
        )
    return _table(document.label, document.pieces, document.added, size)


def _table(label: str, pieces: Mapping[str, int], added: tuple[AddedEntry, ...], size: int) -> TokenTable:
    table = TokenTable.of_size(size, label)
    special = {entry.content for entry in added}
    for text, token_id in pieces.items():
        if text in special:
            continue
        phantom = gguf_text(text, is_special=False)
        if not phantom:
            raise FormatError(f"{label}: token {text!r} at id {token_id} is empty without its prefix")
        table.put(token_id, phantom, TokenType.NORMAL)
    table.put_added(added)
    return table


def normalization_of(document: TokenizerDocument) -> Normalization:
    """Return the settings of the normalizer; raise if it does not work like BERT's."""
    normalizer = document.content.get("normalizer")
    if not isinstance(normalizer, Mapping) or normalizer.get("type") != "BertNormalizer":
        raise FormatError(f"{document.label}: its normalizer is not BertNormalizer, which llama.cpp requires")
    for setting in ("clean_text", "handle_chinese_chars"):
        if normalizer.get(setting) is False:
            raise FormatError(f"{document.label}: has {setting} false, for which GGUF has no key")
    accents = normalizer.get("strip_accents")
    return Normalization(normalizer.get("lowercase") is not False, accents if isinstance(accents, bool) else None)


def table_of_lines(path: Path, vocabulary_size: int | None) -> tuple[TokenTable, tuple[str, ...]]:
    """Return the rows of a vocab.txt, with one piece per line, and its special tokens."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path}: cannot be read as text: {error}") from error
    if lines and not lines[-1]:
        lines.pop()
    pieces = {text.rstrip("\r"): number for number, text in enumerate(lines)}
    if len(pieces) != len(lines):
        raise FormatError(f"{path}: has {len(lines) - len(pieces)} lines twice, expected one line for each token")
    special = tuple(text for text in _SPECIAL_TEXTS if text in pieces)
    added = tuple(AddedEntry(pieces[text], text, True) for text in special)
    return _table(str(path), pieces, added, vocabulary_size or len(lines)), special


def settings_of_lines(settings: Mapping[str, Any]) -> Normalization:
    """Return the normalization of a vocab.txt from tokenizer_config.json, with the defaults of transformers."""
    accents = settings.get("strip_accents")
    return Normalization(settings.get("do_lower_case") is not False, accents if isinstance(accents, bool) else None)
