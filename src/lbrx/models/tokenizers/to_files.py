"""Convert the key-values of a GGUF file to tokenizer files for the tokenizers library and transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lbrx.errors import FormatError
from lbrx.files.formats.strict_json import json_bytes
from lbrx.files.output.plan import SideFile
from lbrx.models.tokenizers.byte_fallback import merges_of_scores
from lbrx.models.tokenizers.chat import DEFAULT, templates_of_keys
from lbrx.models.tokenizers.chat_templates import CONFIG_NAME, TEMPLATE_NAME
from lbrx.models.tokenizers.gguf_vocabulary import GgufVocabulary, plain_values, read_vocabulary
from lbrx.models.tokenizers.records import TokenType
from lbrx.models.tokenizers.sentencepiece import SPACE
from lbrx.models.tokenizers.tokenizer_file import TOKENIZER_NAME

# llama.cpp recognizes these models by name: their special tokens, except three, absorb the following space.
_STRIPPING_NAMES = ("phi-3", "phi3")
_NEVER_STRIPPING = ("<unk>", "<s>", "<|endoftext|>")


def tokenizer_files(metadata: Mapping[str, Any], *, where: str = "GGUF metadata") -> tuple[SideFile, ...]:
    """Return tokenizer.json and tokenizer_config.json for the tokenizer of a GGUF file, and its chat
    template.

    They split texts like llama.cpp. They include NFC normalization for models that use it, such as Qwen;
    llama.cpp omits that step. Errors begin with ``where``.

    >>> tokenizer_files({"tokenizer.ggml.model": "bert"})
    Traceback (most recent call last):
    lbrx.errors.FormatError: GGUF metadata: has a tokenizer of model 'bert', expected gpt2 or llama as \
tokenizer.ggml.model
    """
    values = plain_values(metadata)
    vocabulary = read_vocabulary(values, where)
    document = tokenizer_document(vocabulary, values)
    templates = templates_of_keys(values)
    files = [
        SideFile(TOKENIZER_NAME, (json.dumps(document, ensure_ascii=False) + "\n").encode()),
        SideFile(CONFIG_NAME, json_bytes(_settings(vocabulary, document["added_tokens"], values, templates))),
    ]
    if list(templates) == [DEFAULT]:
        files.append(SideFile(TEMPLATE_NAME, templates[DEFAULT].encode()))
    return tuple(files)


def tokenizer_document(vocabulary: GgufVocabulary, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of tokenizer.json for a vocabulary and the plain key-values that it was read from."""
    is_byte_level = vocabulary.pre is not None
    strips = any(name in str(values.get("general.name", "")).lower() for name in _STRIPPING_NAMES)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(vocabulary, strips),
        **(_byte_level_parts(vocabulary) if is_byte_level else _sentencepiece_parts(vocabulary)),
        "post_processor": _post_processor(vocabulary),
    }


def _added_tokens(vocabulary: GgufVocabulary, strips: bool) -> list[dict[str, Any]]:
    return [
        {
            "id": token_id,
            "content": vocabulary.texts[token_id],
            "single_word": False,
            "lstrip": False,
            "rstrip": strips and vocabulary.texts[token_id] not in _NEVER_STRIPPING,
            "normalized": False,
            "special": vocabulary.types[token_id] != TokenType.USER_DEFINED,
        }
        for token_id in vocabulary.added
    ]


def _byte_level_parts(vocabulary: GgufVocabulary) -> dict[str, Any]:
    assert vocabulary.pre is not None
    return {
        "normalizer": {"type": "NFC"} if vocabulary.pre.nfc else None,
        "pre_tokenizer": vocabulary.pre.as_json(),
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": vocabulary.pre.ignores_merges,
            "vocab": vocabulary.kept,
            "merges": [_split_merge(line, vocabulary) for line in vocabulary.merges],
        },
    }


def _split_merge(line: str, vocabulary: GgufVocabulary) -> tuple[str, str]:
    """Return the two tokens of a merge line; a leading space belongs to the first."""
    cut = line.find(" ", 1)
    left, right = line[:cut], line[cut + 1 :]
    if cut < 0 or any(text not in vocabulary.kept for text in (left, right, left + right)):
        raise FormatError(f"{vocabulary.where}: the merge {line!r} is not two tokens, or does not make a token")
    return left, right


def _sentencepiece_parts(vocabulary: GgufVocabulary) -> dict[str, Any]:
    escape = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    prefix: list[Any] = [{"type": "Prepend", "prepend": SPACE}] if vocabulary.adds_space_prefix else []
    strip: list[Any] = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    unescape = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*prefix, escape]},
        "pre_tokenizer": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [unescape, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": vocabulary.unknown,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": vocabulary.kept,
            "merges": merges_of_scores(vocabulary.texts, vocabulary.types, vocabulary.scores),
        },
    }


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
        "pair": [*part("A", 0), *part("B", 1)],
        "special_tokens": {text: {"id": text, "ids": [token_id], "tokens": [text]} for token_id, text in texts.items()},
    }


def _settings(
    vocabulary: GgufVocabulary,
    added_tokens: Sequence[Mapping[str, Any]],
    values: Mapping[str, Any],
    templates: Mapping[str, str],
) -> dict[str, Any]:
    """Return the content of tokenizer_config.json."""
    special = vocabulary.special
    names = {f"{role}_token": vocabulary.texts[token_id] for role, token_id in special.ids.items()}
    context = values.get(f"{values.get('general.architecture')}.context_length")
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": special.add_bos,
        "add_eos_token": special.add_eos,
        "added_tokens_decoder": {
            str(token["id"]): {key: value for key, value in token.items() if key != "id"} for token in added_tokens
        },
        "clean_up_tokenization_spaces": False,
        **names,
    }
    if context is not None:
        settings["model_max_length"] = int(context)
    if list(templates) == [DEFAULT]:
        settings["chat_template"] = templates[DEFAULT]
    elif templates:
        settings["chat_template"] = [{"name": name, "template": text} for name, text in templates.items()]
    return settings
