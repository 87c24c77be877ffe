"""Byte-level BPE (GPT-2's kind) from tokenizer.json to the rows of a GGUF file."""

from __future__ import annotations

from lbrx.errors import FormatError
from lbrx.models.tokenizers.document import TokenizerDocument
from lbrx.models.tokenizers.records import TokenTable, TokenType


def byte_level_table(document: TokenizerDocument, size: int) -> TokenTable:
    """The tokens of a byte-level tokenizer: normal ones, and added ones as control or user-defined tokens."""
    document.require_plain_bpe()
    table = TokenTable.of_size(size, document.label)
    added = {entry.content for entry in document.added}
    table.put_all({text: number for text, number in document.pieces.items() if text not in added}, TokenType.NORMAL)
    table.put_added(document.added)
    return table


def merge_lines(document: TokenizerDocument) -> list[str]:
    """The merges as GGUF has them: two tokens with a space between them, which so cannot be part of either.

    A file without merges has none to list; llama.cpp wants the key in any case.
    """
    lines = [f"{left} {right}" for left, right in document.merges]
    for (left, right), line in zip(document.merges, lines, strict=True):
        if line.count(" ") != 1:
            raise FormatError(f"{document.label}: the merge of {left!r} and {right!r} has a space in a token")
    return lines
