"""Unigram tokenizers (as in T5 and XLM-RoBERTa) to the rows of a GGUF file."""

from __future__ import annotations

import math
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import FormatError
from lbrx.models.tokenizers.character_map import check_character_map
from lbrx.models.tokenizers.document import TokenizerDocument
from lbrx.models.tokenizers.records import AddedEntry, TokenTable, TokenType
from lbrx.models.tokenizers.sentencepiece import SentencePieceModel

UNUSED_SCORE = -10000.0
# XLM-RoBERTa puts these before the pieces of its SentencePiece model, whose own first three it drops.
_XLM_ROBERTA = ("<s>", "<pad>", "</s>", "<unk>")


@dataclass(frozen=True, eq=False)
class Unigram:
    """Rows of a Unigram tokenizer, and what happens to a text before."""

    table: TokenTable
    adds_space_prefix: bool
    removes_spaces: bool
    character_map: bytes


def unigram_of_document(document: TokenizerDocument, size: int) -> Unigram:
    """Return the Unigram tokenizer of a tokenizer.json."""
    label, model = document.label, document.model
    if model.get("byte_fallback"):
        raise FormatError(f"{label}: is a Unigram tokenizer with byte_fallback, which llama.cpp does not have")
    table = TokenTable.of_size(max(size, document.end), label, lowest_score=UNUSED_SCORE)
    for token_id, (text, score) in enumerate(model["vocab"]):
        if not math.isfinite(score):
            raise FormatError(f"{label}: token {text!r} has the score {score}, expected a finite number")
        table.put(token_id, text, TokenType.NORMAL, float(score))
    table.put_added(document.added)
    unknown = model.get("unk_id")
    if isinstance(unknown, int):
        table.put(unknown, table.texts[unknown], TokenType.UNKNOWN)
    prefix, removes, character_map = _normalization(document)
    return Unigram(table, prefix, removes, character_map)


def _normalization(document: TokenizerDocument) -> tuple[bool, bool, bytes]:
    """Return whether a space is put before texts, whether extra spaces are removed, and the character map."""
    character_map, removes, prefix = b"", False, False
    for step in _steps(document.content.get("normalizer"), "normalizers"):
        name = step.get("type")
        if name == "Precompiled":
            character_map = b64decode(step.get("precompiled_charsmap") or "")
        elif name == "Replace" and _collapses(step):
            removes = True
        elif name == "Prepend":
            prefix = True
        elif not (name == "Strip" or _escapes(step)):
            raise FormatError(f"{document.label}: the normalizer {name} changes texts, for which GGUF has no key")
    for step in _steps(document.content.get("pre_tokenizer"), "pretokenizers"):
        name = step.get("type")
        if name == "Metaspace":
            prefix = (
                prefix or step.get("prepend_scheme", "always" if step.get("add_prefix_space", True) else "") != "never"
            )
        elif name == "WhitespaceSplit":
            removes = True
        else:
            raise FormatError(f"{document.label}: splits texts by {name}, expected Metaspace or WhitespaceSplit")
    if character_map:
        check_character_map(character_map, f"{document.label}: the character map")
    return prefix, removes, character_map


def _steps(part: Any, name: str) -> Iterator[Mapping[str, Any]]:
    if isinstance(part, Mapping):
        for step in part.get(name, [part]):
            yield step if isinstance(step, Mapping) else {}


def _collapses(step: Mapping[str, Any]) -> bool:
    pattern = step.get("pattern", {})
    return pattern.get("Regex") in (" {2,}", "^ +| +$| +(?= )") and step.get("content") in (" ", "▁", "")


def _escapes(step: Mapping[str, Any]) -> bool:
    return step.get("type") == "Replace" and step.get("pattern") == {"String": " "} and step.get("content") == "▁"


def unigram_of_model(
    model: SentencePieceModel, added: Sequence[AddedEntry], size: int, *, as_xlm_roberta: bool = False
) -> Unigram:
    """Return the tokenizer of a SentencePiece model, with the added tokens that other files of the directory name."""
    table = TokenTable.of_size(size, model.label, lowest_score=UNUSED_SCORE)
    pieces = [(piece.text, piece.score, piece.token_type) for piece in model.pieces]
    if as_xlm_roberta:
        special = [(text, 0.0, TokenType.CONTROL) for text in _XLM_ROBERTA[:3]]
        pieces = [*special, (_XLM_ROBERTA[3], 0.0, TokenType.UNKNOWN), *pieces[3:]]
        table.put(size - 1, "<mask>", TokenType.CONTROL, 0.0)
    for token_id, (text, score, token_type) in enumerate(pieces):
        table.put(token_id, text, token_type, score)
    for entry in added:
        if 0 <= entry.token_id < size:
            token_type = TokenType.CONTROL if entry.is_special else TokenType.USER_DEFINED
            table.put(entry.token_id, entry.content, token_type, -1000.0)
    if model.character_map:
        check_character_map(model.character_map, f"{model.label}: the character map")
    return Unigram(table, model.adds_space_prefix, model.removes_spaces, model.character_map)
