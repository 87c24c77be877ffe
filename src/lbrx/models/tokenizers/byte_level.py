"""Convert byte-level BPE (as in GPT-2) from tokenizer.json to the rows of a GGUF file."""

from __future__ import annotations

from lbrx.errors import FormatError
from lbrx.models.tokenizers.document import TokenizerDocument
from lbrx.models.tokenizers.records import TokenTable, TokenType


def byte_level_table(document: TokenizerDocument, size: int) -> TokenTable:
    """Return the tokens of a byte-level tokenizer: normal ones, and added ones as control or user-defined tokens."""
    document.require_plain_bpe()
    table = TokenTable.of_size(size, document.label)
    added = {entry.content for entry in document.added}
    table.put_all({text: number for text, number in document.pieces.items() if text not in added}, TokenType.NORMAL)
    table.put_added(document.added)
    return table


def merge_lines(document: TokenizerDocument) -> list[str]:
    """Return the merges in the GGUF form: two tokens separated by a space, so neither may contain one.

    The list is empty if the file has no merges; llama.cpp requires the key in any case.
    """
    lines = [f"{left} {right}" for left, right in document.merges]
    for (left, right), line in zip(document.merges, lines, strict=True):
        if line.count(" ") != 1:
            raise FormatError(f"{document.label}: the merge of {left!r} and {right!r} has a space in a token")
    return lines
