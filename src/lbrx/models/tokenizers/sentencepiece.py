"""SentencePiece models (``tokenizer.model``): pieces with scores, and normalization settings."""

from __future__ import annotations

import math
from pathlib import Path

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import FileError, FormatError
from lbrx.models.tokenizers.protobuf import fields
from lbrx.models.tokenizers.records import TokenType

MODEL_NAME = "tokenizer.model"
SPACE = "▁"
_LFS_POINTER = b"version https://git-lfs"
_MODEL_TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}

# Field numbers in the messages of sentencepiece_model.proto.
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_PIECE_TEXT, _PIECE_SCORE, _PIECE_TYPE = 1, 2, 3
_TRAINER_MODEL_TYPE, _TRAINER_SUFFIX = 3, 24
_TRAINER_IDS = {40: "unk", 41: "bos", 42: "eos", 43: "pad"}
_CHARACTER_MAP, _DUMMY_PREFIX, _REMOVE_SPACES, _ESCAPE_SPACES = 2, 3, 4, 5


@dataclass(frozen=True, slots=True)
class Piece:
    text: str
    score: float
    token_type: TokenType


@dataclass(frozen=True, eq=False)
class SentencePieceModel:
    """The parts of a model that a tokenizer needs; ``special_ids`` has unk, bos, eos and pad if they exist."""

    label: str
    pieces: tuple[Piece, ...]
    special_ids: dict[str, int]
    adds_space_prefix: bool
    removes_spaces: bool = False
    character_map: bytes = b""
    is_unigram: bool = False

    def require_bpe(self) -> None:
        """Raise unless this is a BPE model whose spaces GGUF can express."""
        if self.is_unigram:
            raise FormatError(f"{self.label}: is a SentencePiece model of type unigram, expected bpe")
        if self.character_map:
            raise FormatError(f"{self.label}: replaces characters of the text (a character map), expected the identity")
        if self.removes_spaces:
            raise FormatError(
                f"{self.label}: removes extra spaces, expected a model that keeps every space of the text as {SPACE!r}"
            )


def read_sentencepiece(path: Path) -> SentencePieceModel:
    """Read a model of type BPE or Unigram; raise if it has a setting that GGUF cannot express."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror}") from error
    return parse_sentencepiece(content, str(path))


def parse_sentencepiece(content: bytes, label: str) -> SentencePieceModel:
    """Parse the model in these bytes.

    >>> piece = bytes([0x0A, 1]) + b"a" + bytes([0x15, 0, 0, 0x80, 0xBF])
    >>> trainer, normalizer = bytes([0x18, 2]), bytes([0x20, 0])
    >>> content = bytes([0x0A, len(piece)]) + piece + bytes([0x12, 2]) + trainer + bytes([0x1A, 2]) + normalizer
    >>> parse_sentencepiece(content, "tokenizer.model").pieces
    (Piece(text='a', score=-1.0, token_type=<TokenType.NORMAL: 1>),)
    """
    if content.startswith(_LFS_POINTER):
        raise FormatError(f"{label}: is a Git LFS pointer, expected the SentencePiece model itself")
    pieces: list[Piece] = []
    trainer: bytes | None = None
    normalizer: bytes | None = None
    for field in fields(content, f"{label}: as a SentencePiece model"):
        if field.number == _PIECES:
            pieces.append(_piece(field.raw(), f"{label}: piece {len(pieces)}"))
        elif field.number == _TRAINER:
            trainer = (trainer or b"") + field.raw()  # parts of a message are concatenated
        elif field.number == _NORMALIZER:
            normalizer = (normalizer or b"") + field.raw()
    if not pieces or trainer is None or normalizer is None:
        part = "pieces" if not pieces else "trainer settings" if trainer is None else "normalizer settings"
        raise FormatError(f"{label}: has no {part}, expected a SentencePiece model")
    special_ids, is_unigram = _trainer_settings(trainer, label, len(pieces))
    return SentencePieceModel(
        label, tuple(pieces), special_ids, *_normalizer_settings(normalizer, label), is_unigram=is_unigram
    )


def _piece(message: bytes, where: str) -> Piece:
    text, score, token_type = "", 0.0, int(TokenType.NORMAL)
    for field in fields(message, where):
        if field.number == _PIECE_TEXT:
            text = field.text()
        elif field.number == _PIECE_SCORE:
            score = field.float32()
        elif field.number == _PIECE_TYPE:
            token_type = field.integer()
    if not text:
        raise FormatError(f"{where} has no text")
    if not math.isfinite(score):
        raise FormatError(f"{where} ({text!r}) has the score {score}, expected a finite number")
    if token_type not in tuple(TokenType):
        raise FormatError(f"{where} ({text!r}) is of type {token_type}, expected 1 to {int(max(TokenType))}")
    return Piece(text, score, TokenType(token_type))


def _trainer_settings(message: bytes, label: str, count: int) -> tuple[dict[str, int], bool]:
    """Return the ids of special tokens, and whether this is a Unigram model."""
    model_type = 1
    ids = {"unk": 0, "bos": 1, "eos": 2, "pad": -1}
    for field in fields(message, f"{label}: trainer settings"):
        if field.number == _TRAINER_MODEL_TYPE:
            model_type = field.integer()
        elif field.number in _TRAINER_IDS:
            ids[_TRAINER_IDS[field.number]] = field.signed()
        elif field.number == _TRAINER_SUFFIX and field.boolean():
            raise FormatError(f"{label}: puts spaces at the end of words, expected them at the beginning")
    if model_type not in (1, 2):
        name = _MODEL_TYPES.get(model_type, str(model_type))
        raise FormatError(f"{label}: is a SentencePiece model of type {name}, expected bpe or unigram")
    return {role: token_id for role, token_id in ids.items() if 0 <= token_id < count}, model_type == 1


def _normalizer_settings(message: bytes, label: str) -> tuple[bool, bool, bytes]:
    """Return whether a space is added before a text and whether extra spaces are removed, and the character map."""
    adds_prefix, removes_spaces, escapes_spaces, character_map = True, True, True, b""
    for field in fields(message, f"{label}: normalizer settings"):
        if field.number == _DUMMY_PREFIX:
            adds_prefix = field.boolean()
        elif field.number == _REMOVE_SPACES:
            removes_spaces = field.boolean()
        elif field.number == _ESCAPE_SPACES:
            escapes_spaces = field.boolean()
        elif field.number == _CHARACTER_MAP:
            character_map = field.raw()
    if not escapes_spaces:
        raise FormatError(f"{label}: does not escape spaces, expected a model that writes them as {SPACE!r}")
    return adds_prefix, removes_spaces, character_map
