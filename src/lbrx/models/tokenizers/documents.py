"""The content of tokenizer.json for the tokenizer of a GGUF file."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lbrx.errors import FormatError
from lbrx.models.tokenizers.byte_fallback import merges_of_scores
from lbrx.models.tokenizers.character_map import check_character_map
from lbrx.models.tokenizers.gguf_vocabulary import GgufVocabulary
from lbrx.models.tokenizers.pretokenizers import as_split
from lbrx.models.tokenizers.records import TokenType
from lbrx.models.tokenizers.sentencepiece import SPACE
from lbrx.models.tokenizers.wordpiece import CONTINUED, MAX_WORD_LENGTH, wordpiece_text

# llama.cpp recognizes these models by name: their special tokens, except three, absorb the following space.
_STRIPPING_NAMES = ("phi-3", "phi3")
_NEVER_STRIPPING = ("<unk>", "<s>", "<|endoftext|>")
_STRIPPING_LEFT = ("nomic-bert-moe", "jina-bert-v3")  # architectures whose <mask> absorbs the space before it
_ESCAPE = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
_UNESCAPE = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}


def tokenizer_document(
    vocabulary: GgufVocabulary, values: Mapping[str, Any], *, composes: bool = True
) -> dict[str, Any]:
    """Return the content of tokenizer.json for a vocabulary and the plain key-values that it was read from.

    ``composes``: whether models that use NFC normalization get it. llama.cpp omits that step.
    """
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(vocabulary, values),
        **_parts(vocabulary, composes),
        "post_processor": _post_processor(vocabulary),
    }


def _parts(vocabulary: GgufVocabulary, composes: bool) -> dict[str, Any]:
    if vocabulary.model == "bert":
        return _wordpiece_parts(vocabulary)
    if vocabulary.model == "t5":
        return _unigram_parts(vocabulary)
    if vocabulary.pre is None:
        return _sentencepiece_parts(vocabulary)
    return _line_parts(vocabulary) if vocabulary.pre.lines else _byte_level_parts(vocabulary, composes)


def _added_tokens(vocabulary: GgufVocabulary, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    strips = any(name in str(values.get("general.name", "")).lower() for name in _STRIPPING_NAMES)
    has_left_mask = values.get("general.architecture") in _STRIPPING_LEFT
    texts = vocabulary.texts
    return [
        {
            "id": token_id,
            "content": texts[token_id],
            "single_word": False,
            "lstrip": has_left_mask and texts[token_id] == "<mask>",
            "rstrip": strips and texts[token_id] not in _NEVER_STRIPPING,
            "normalized": False,
            "special": vocabulary.types[token_id] != TokenType.USER_DEFINED,
        }
        for token_id in vocabulary.added
    ]


def _byte_level_parts(vocabulary: GgufVocabulary, composes: bool) -> dict[str, Any]:
    pre, rules = vocabulary.pre, vocabulary.rules
    assert pre is not None
    composed = {"type": "NFC"} if pre.nfc and composes else None
    return {
        "normalizer": rules.normalizer if rules else composed,
        "pre_tokenizer": rules.pre_tokenizer if rules else pre.as_json(),
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "model": {
            **_bpe(vocabulary),
            "unk_token": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": rules.ignores_merges if rules else pre.ignores_merges,
            "merges": _split_merges(vocabulary),
        },
    }


def _bpe(vocabulary: GgufVocabulary) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "vocab": vocabulary.kept,
    }


def _split_merges(vocabulary: GgufVocabulary) -> list[tuple[str, str]]:
    """Return the two tokens of each merge line; a leading space belongs to the first."""
    kept, merges = vocabulary.kept, []
    for line in vocabulary.merges:
        cut = line.find(" ", 1)
        left, right = line[:cut], line[cut + 1 :]
        if cut < 0 or left not in kept or right not in kept or left + right not in kept:
            raise FormatError(
                f"{vocabulary.where}: the merge {line!r:.200} is not two tokens, or does not make a token"
            )
        merges.append((left, right))
    return merges


def _line_parts(vocabulary: GgufVocabulary) -> dict[str, Any]:
    """BPE on text with a letter for spaces; bytes encode characters without a token."""
    assert vocabulary.pre is not None
    return {
        "normalizer": _ESCAPE,
        "pre_tokenizer": as_split(vocabulary.pre.patterns[0]),
        "decoder": {"type": "Sequence", "decoders": [_UNESCAPE, {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {
            **_bpe(vocabulary),
            "unk_token": vocabulary.unknown,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "merges": _split_merges(vocabulary),
        },
    }


def _sentencepiece_parts(vocabulary: GgufVocabulary) -> dict[str, Any]:
    prefix: list[Any] = [{"type": "Prepend", "prepend": SPACE}] if vocabulary.adds_space_prefix else []
    strip: list[Any] = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*prefix, _ESCAPE]},
        "pre_tokenizer": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [_UNESCAPE, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip],
        },
        "model": {
            **_bpe(vocabulary),
            "unk_token": vocabulary.unknown,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "merges": merges_of_scores(vocabulary.texts, vocabulary.types, vocabulary.scores),
        },
    }


def _wordpiece_parts(vocabulary: GgufVocabulary) -> dict[str, Any]:
    unknown = vocabulary.unknown
    if unknown is None:
        raise FormatError(f"{vocabulary.where}: has no unknown token, which WordPiece needs")
    pieces: dict[str, int] = {}
    for text, token_id in vocabulary.kept.items():
        piece = wordpiece_text(text, is_special=vocabulary.types[token_id] == TokenType.CONTROL)
        if pieces.setdefault(piece, token_id) != token_id:
            raise FormatError(f"{vocabulary.where}: tokens {pieces[piece]} and {token_id} both mean {piece!r}")
    return {
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": vocabulary.strips_accents,
            "lowercase": vocabulary.lowercases,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": CONTINUED, "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": unknown,
            "continuing_subword_prefix": CONTINUED,
            "max_input_chars_per_word": MAX_WORD_LENGTH,
            "vocab": pieces,
        },
    }


def _unigram_parts(vocabulary: GgufVocabulary) -> dict[str, Any]:
    unknown = vocabulary.unknown
    if unknown is None:
        raise FormatError(f"{vocabulary.where}: has no unknown token, which Unigram needs")
    return {
        "normalizer": {"type": "Sequence", "normalizers": list(_unigram_normalizers(vocabulary))},
        "pre_tokenizer": None,
        "decoder": {
            "type": "Metaspace",
            "replacement": SPACE,
            "prepend_scheme": "always" if vocabulary.adds_space_prefix else "never",
            "split": False,
        },
        "model": {
            "type": "Unigram",
            "unk_id": vocabulary.texts.index(unknown),
            "vocab": list(zip(vocabulary.texts, vocabulary.scores, strict=True)),
            "byte_fallback": False,
        },
    }


def _unigram_normalizers(vocabulary: GgufVocabulary) -> Iterable[dict[str, Any]]:
    if vocabulary.character_map:
        check_character_map(vocabulary.character_map, f"{vocabulary.where}: the character map")
        encoded = b64encode(vocabulary.character_map).decode()
        yield {"type": "Precompiled", "precompiled_charsmap": encoded}
    if vocabulary.removes_spaces:
        yield {"type": "Replace", "pattern": {"Regex": "^ +| +$| +(?= )"}, "content": ""}
    if vocabulary.adds_space_prefix:
        yield {"type": "Prepend", "prepend": SPACE}
    yield _ESCAPE


def _post_processor(vocabulary: GgufVocabulary) -> dict[str, Any] | None:
    special = vocabulary.special
    before = [special.ids["bos"]] if special.add_bos else []
    after = [special.ids["eos"]] if special.add_eos else []
    if not before and not after:
        return None
    texts = {token_id: vocabulary.texts[token_id] for token_id in (*before, *after)}

    def part(sequence: str, type_id: int) -> list[dict[str, Any]]:
        def tokens(ids: Sequence[int]) -> list[dict[str, Any]]:
            return [{"SpecialToken": {"id": texts[token_id], "type_id": type_id}} for token_id in ids]

        return [*tokens(before), {"Sequence": {"id": sequence, "type_id": type_id}}, *tokens(after)]

    return {
        "type": "TemplateProcessing",
        "single": part("A", 0),
        "pair": _pair(part("A", 0), part("B", 1), len(before), separated=special.add_sep is not None),
        "special_tokens": {text: {"id": text, "ids": [token_id], "tokens": [text]} for token_id, text in texts.items()},
    }


def _pair(
    first: list[dict[str, Any]], second: list[dict[str, Any]], before: int, *, separated: bool
) -> list[dict[str, Any]]:
    """Return the template of two texts, with special tokens between them only if ``separated``."""
    return [*first, *second] if separated else [*first[: before + 1], *second[before:]]
