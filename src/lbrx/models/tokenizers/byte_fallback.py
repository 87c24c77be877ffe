"""SentencePiece BPE: characters with bytes as a fallback, merged in the order of scores.

SentencePiece and llama.cpp join any two neighbors whose text is a token, highest score first. The
tokenizers library joins listed pairs, lowest rank first. Both give the same result if the list contains every
pair, ordered by the score of the joined token; so the score is the negative index of a token in the order of merges.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from lbrx.errors import FormatError
from lbrx.models.tokenizers.document import TokenizerDocument
from lbrx.models.tokenizers.records import AddedEntry, TokenTable, TokenType
from lbrx.models.tokenizers.sentencepiece import SPACE, SentencePieceModel

_BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")
MAX_TOKEN_LENGTH = 1 << 14
ANY_MERGES = "default"  # the pre-tokenizer's name with which a caller accepts merges that scores cannot express


def byte_token(value: int) -> str:
    """Return the token for a byte.

    >>> byte_token(10)
    '<0x0A>'
    """
    return f"<0x{value:02X}>"


def pairs_that_make(text: str, ids: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Yield every pair of tokens that can be joined to a token, as pairs of ids.

    >>> list(pairs_that_make("abc", {"a": 0, "bc": 1, "ab": 2, "c": 3}))
    [('a', 'bc'), ('ab', 'c')]
    """
    if len(text) > MAX_TOKEN_LENGTH:  # checking all splits takes quadratic time
        raise FormatError(f"the tokenizer has a token of {len(text)} characters, expected at most {MAX_TOKEN_LENGTH}")
    cuts = ((text[:end], text[end:]) for end in range(1, len(text)))
    known = [pair for pair in cuts if pair[0] in ids and pair[1] in ids]
    yield from sorted(known, key=lambda pair: (ids[pair[0]], ids[pair[1]]))


def merges_of_scores(texts: Sequence[str], types: Sequence[int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Return the list of merges that is equivalent to the scores of a SentencePiece vocabulary.

    >>> merges_of_scores(["a", "b", "ab", "bb"], [1, 1, 1, 1], [0, 0, -2, -1])
    [('b', 'b'), ('a', 'b')]
    """
    ids = {text: token_id for token_id, text in enumerate(texts) if types[token_id] == TokenType.NORMAL}
    order = sorted(ids.values(), key=lambda token_id: (-scores[token_id], token_id))
    return [pair for token_id in order for pair in pairs_that_make(texts[token_id], ids)]


def table_of_document(
    document: TokenizerDocument, model: SentencePieceModel | None, size: int, *, any_merges: bool = False
) -> TokenTable:
    """Return the rows of a SentencePiece-like tokenizer.json.

    Scores come from the SentencePiece model next to it if that has the same pieces, otherwise from the merges, which
    must then be complete unless ``any_merges`` allows an approximation.
    """
    document.require_plain_bpe()
    added = {entry.content for entry in document.added}
    pieces = {text: token_id for text, token_id in document.pieces.items() if text not in added}
    scores = _scores_of_model(pieces, model) if model else None
    if scores is None:
        lost = _lost_pieces(document, pieces)
        if not any_merges:
            _require_complete_merges(document, (text for text in pieces if text not in lost), pieces)
        scores = _scores_of_merges([*lost, *map("".join, document.merges)])
    table = TokenTable.of_size(size, document.label, lowest_score=min(scores.values(), default=0.0) - 1)
    unknown = document.model.get("unk_token")
    for text, token_id in pieces.items():
        table.put(token_id, text, _type_of(text, unknown), scores.get(text))
    _put_added(table, document.added, unknown)
    _require_bytes(table)
    return table


def line_table(document: TokenizerDocument, size: int) -> TokenTable:
    """Return the rows of a BPE that GGUF files describe by its merges: all scores are equal."""
    table = TokenTable.of_size(size, document.label, lowest_score=-1000.0)
    added = {entry.content for entry in document.added}
    for text, token_id in document.pieces.items():
        if text not in added:
            table.put(token_id, text, _type_of(text, None))
    table.put_added(document.added, space=SPACE)
    _require_bytes(table)
    return table


def table_of_model(model: SentencePieceModel, added: Sequence[AddedEntry], size: int) -> TokenTable:
    """Return the rows of a SentencePiece model, with the added tokens that other files of the directory name."""
    lowest = min(piece.score for piece in model.pieces) - 1
    table = TokenTable.of_size(size, model.label, lowest_score=lowest)
    for token_id, piece in enumerate(model.pieces):
        text = piece.text.replace(SPACE, " ") if piece.token_type is TokenType.USER_DEFINED else piece.text
        table.put(token_id, text, piece.token_type, piece.score)
    unknown = next((piece.text for piece in model.pieces if piece.token_type is TokenType.UNKNOWN), None)
    _put_added(table, added, unknown)
    _require_bytes(table)
    return table


def _type_of(text: str, unknown: str | None) -> TokenType:
    if text == unknown:
        return TokenType.UNKNOWN
    return TokenType.BYTE if _BYTE_TOKEN.fullmatch(text) else TokenType.NORMAL


def _put_added(table: TokenTable, added: Sequence[AddedEntry], unknown: str | None) -> None:
    table.put_added(added, space=SPACE)
    token_id = table.find(unknown) if unknown else None
    if unknown and token_id is not None:
        table.put(token_id, unknown, TokenType.UNKNOWN)


def _scores_of_model(pieces: Mapping[str, int], model: SentencePieceModel) -> dict[str, float] | None:
    """Return the scores of the pieces, or None if tokenizer.json has other pieces, as after a vocabulary change."""
    for text, token_id in pieces.items():
        if token_id >= len(model.pieces) or model.pieces[token_id].text != text:
            return None
    return {text: model.pieces[token_id].score for text, token_id in pieces.items()}


def _scores_of_merges(made: Sequence[str]) -> dict[str, float]:
    return {text: -float(index) for index, text in enumerate(dict.fromkeys(made))}


def _lost_pieces(document: TokenizerDocument, pieces: Mapping[str, int]) -> list[str]:
    """Order pieces made by merges before all others.

    The score of the first piece is zero, which older converters of tokenizer.model treated as missing.
    """
    made = set(map("".join, document.merges))
    first = min((pieces[text] for text in made if text in pieces), default=0)
    early = (text for text, token_id in pieces.items() if token_id < first and text not in made)
    return sorted((text for text in early if any(pairs_that_make(text, pieces))), key=pieces.__getitem__)


def _require_complete_merges(document: TokenizerDocument, made: Iterable[str], pieces: Mapping[str, int]) -> None:
    listed = set(document.merges)
    for text in made:
        for pair in pairs_that_make(text, pieces):
            if pair not in listed:
                raise FormatError(
                    f"{document.label}: has no merge of {pair[0]!r} and {pair[1]!r}, although {text!r} is a token; "
                    f"llama.cpp would join them, so texts would be split differently; expected a merge for every "
                    f"such pair (pass {ANY_MERGES!r} as `pre` to convert the tokenizer anyway)"
                )


def _require_bytes(table: TokenTable) -> None:
    for value in range(256):
        has_character = value < 0x80 and table.find(chr(value)) is not None  # as Gemma 2 has for the tabulator
        if table.find(byte_token(value)) is None and not has_character:
            raise FormatError(
                f"{table.label}: has no token {byte_token(value)}; expected one for each byte, "
                f"to encode characters without a token"
            )
