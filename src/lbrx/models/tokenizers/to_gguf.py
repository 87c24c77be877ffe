"""Convert the tokenizer files of a Hugging Face directory to the key-values of a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lbrx.errors import FileError, FormatError
from lbrx.files.formats.gguf_values import StringArray, Typed
from lbrx.files.formats.strict_json import read_json
from lbrx.models.tokenizers.byte_fallback import ANY_MERGES, line_table, table_of_document, table_of_model
from lbrx.models.tokenizers.byte_level import byte_level_table, merge_lines
from lbrx.models.tokenizers.chat import read_templates, template_keys
from lbrx.models.tokenizers.document import TokenizerDocument, read_document
from lbrx.models.tokenizers.gguf_keys import ID_KEYS, PREFIX, RULES_KEY
from lbrx.models.tokenizers.recognition import Recognized, pre_tokenizer_of
from lbrx.models.tokenizers.records import AddedEntry, TokenTable
from lbrx.models.tokenizers.rwkv import END_OF_TURN, RWKV_NAME, rwkv_table
from lbrx.models.tokenizers.sentencepiece import MODEL_NAME, SPACE, SentencePieceModel, read_sentencepiece
from lbrx.models.tokenizers.specials import SpecialTokens, read_settings, special_tokens
from lbrx.models.tokenizers.tiktoken import QWEN_NAME, TEKKEN_NAME, RankedTokens, read_qwen, read_tekken
from lbrx.models.tokenizers.tokenizer_file import ADDED_TOKENS_NAME, TOKENIZER_NAME
from lbrx.models.tokenizers.unigram import Unigram, unigram_of_document, unigram_of_model
from lbrx.models.tokenizers.wordpiece import (
    VOCABULARY_NAME,
    Normalization,
    normalization_of,
    settings_of_lines,
    table_of_lines,
    wordpiece_table,
)

VOCABULARY_FILES = ("spiece.model", "sentencepiece.bpe.model", TEKKEN_NAME, QWEN_NAME, RWKV_NAME, VOCABULARY_NAME)
"""Vocabularies that are read if there is no tokenizer.json and no tokenizer.model."""

_UNIGRAM_NAMES = VOCABULARY_FILES[:2]
_LINE_MODELS = ("gemma4",)  # model types of config.json
_SPACE_PROBES = ("a  b\tc\n d ", "x", "é\u0301 ﬁ 中 12  ")


def gguf_tokenizer_metadata(directory: Path, config: Mapping[str, Any], *, pre: str | None = None) -> dict[str, Any]:
    """Return the key-values that describe the tokenizer of a directory to llama.cpp.

    Byte-level BPE becomes the model ``gpt2``, SentencePiece BPE (``tokenizer.model``, or a tokenizer.json with
    byte_fallback) the model ``llama``, Unigram the model ``t5``, WordPiece the model ``bert`` and RWKV's vocabulary
    the model ``rwkv``. Ids without a token up to the ``vocab_size`` of ``config`` become unused ``[PADn]``; added
    tokens beyond it have no row and are omitted. ``pre`` is a name of ``tokenizer.ggml.pre`` for a tokenizer whose rule
    is not recognized. Without one, the rule is kept in a key of its own, and a warning says so.

    >>> import tempfile
    >>> gguf_tokenizer_metadata(Path(tempfile.mkdtemp()), {})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    lbrx.errors.FileError: ...: holds no tokenizer.json, no tokenizer.model and no other vocabulary
    """
    document = read_document(directory)
    keys = _keys_of_files(directory, config, pre) if document is None else _keys_of(directory, document, config, pre)
    return keys | template_keys(read_templates(directory))


def _keys_of(
    directory: Path, document: TokenizerDocument, config: Mapping[str, Any], pre: str | None
) -> dict[str, Any]:
    model_type = document.model.get("type", "BPE")
    if model_type == "WordPiece":
        return _wordpiece_keys(directory, document, config)
    if model_type == "Unigram":
        return _unigram_keys(directory, unigram_of_document(document, _rows(config, document.end)), config, document)
    if not document.is_byte_fallback:
        return _byte_level_keys(directory, document, config, pre)
    if str(config.get("model_type", "")).startswith(_LINE_MODELS):
        return _line_keys(directory, document, config)
    has_model = (directory / MODEL_NAME).is_file()
    model = read_sentencepiece(directory / MODEL_NAME) if has_model else None
    return _sentencepiece_keys(directory, document, model, config, pre)


def _keys_of_files(directory: Path, config: Mapping[str, Any], pre: str | None) -> dict[str, Any]:
    """Return the keys for a directory without tokenizer.json."""
    for name in (MODEL_NAME, *_UNIGRAM_NAMES):
        if (directory / name).is_file():
            model = read_sentencepiece(directory / name)
            if not model.is_unigram:
                return _sentencepiece_keys(directory, None, model, config, pre)
            settings = read_settings(directory)
            as_xlm_roberta = name == _UNIGRAM_NAMES[-1]
            end = max(len(model.pieces) + as_xlm_roberta + 1, 0) if as_xlm_roberta else len(model.pieces)
            added = _added_entries(directory, settings)
            end = max([end, *(entry.token_id + 1 for entry in added)])
            unigram = unigram_of_model(model, added, _rows(config, end), as_xlm_roberta=as_xlm_roberta)
            return _unigram_keys(directory, unigram, config, None, model)
    rows = _rows(config, 0) or None
    if (directory / TEKKEN_NAME).is_file():
        return _ranked_keys(read_tekken(directory / TEKKEN_NAME, rows), directory, config, add_bos=True)
    if (directory / QWEN_NAME).is_file():
        return _ranked_keys(read_qwen(directory / QWEN_NAME, rows), directory, config, add_bos=False)
    if (directory / RWKV_NAME).is_file():
        return _rwkv_keys(rwkv_table(directory / RWKV_NAME, rows))
    if (directory / VOCABULARY_NAME).is_file():
        return _vocabulary_keys(directory, config)
    raise FileError(f"{directory}: holds no {TOKENIZER_NAME}, no {MODEL_NAME} and no other vocabulary")


def _wordpiece_keys(directory: Path, document: TokenizerDocument, config: Mapping[str, Any]) -> dict[str, Any]:
    table = wordpiece_table(document, _rows(config, document.end))
    settings = read_settings(directory)
    return _bert_keys(
        table,
        settings,
        config,
        normalization_of(document),
        document.content.get("post_processor"),
        document.known_name or "default",
    )


def _vocabulary_keys(directory: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    settings = read_settings(directory)
    table, special = table_of_lines(directory / VOCABULARY_NAME, _rows(config, 0) or None)
    named = {
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "unk_token": "[UNK]",
        "pad_token": "[PAD]",
        "mask_token": "[MASK]",
    }
    settings = {role: text for role, text in named.items() if text in special} | settings
    return _bert_keys(table, settings, config, settings_of_lines(settings), None, "default")


def _bert_keys(
    table: TokenTable,
    settings: Mapping[str, Any],
    config: Mapping[str, Any],
    normalization: Normalization,
    post_processor: Any,
    pre: str,
) -> dict[str, Any]:
    settings = dict(settings)
    for role, stand_in in (("bos", "cls"), ("eos", "sep")):
        if not settings.get(f"{role}_token") and settings.get(f"{stand_in}_token"):
            settings[f"{role}_token"] = settings[f"{stand_in}_token"]
    special = special_tokens(settings, config, table.find, size=len(table), post_processor=post_processor)
    keys = {**_table_keys("bert", pre, table), **_id_keys(special)}
    keys["tokenizer.ggml.normalizer.lowercase"] = Typed(normalization.lowercases, "bool")
    if normalization.strips_accents is not None:
        keys["tokenizer.ggml.normalizer.strip_accents"] = Typed(normalization.strips_accents, "bool")
    return keys


def _unigram_keys(
    directory: Path,
    unigram: Unigram,
    config: Mapping[str, Any],
    document: TokenizerDocument | None,
    model: SentencePieceModel | None = None,
) -> dict[str, Any]:
    special = special_tokens(
        read_settings(directory),
        config,
        unigram.table.find,
        size=len(unigram.table),
        post_processor=document.content.get("post_processor") if document is not None else None,
        own_ids=model.special_ids if model is not None else None,
        add_eos=document is None,
    )
    keys = {
        **_table_keys("t5", "default", unigram.table),
        "tokenizer.ggml.scores": Typed(np.array(unigram.table.scores, np.float32), "array[f32]"),
        "tokenizer.ggml.add_space_prefix": Typed(unigram.adds_space_prefix, "bool"),
        "tokenizer.ggml.remove_extra_whitespaces": Typed(unigram.removes_spaces, "bool"),
        **_special_keys(special),
    }
    if unigram.character_map:
        character_map = np.frombuffer(unigram.character_map, np.uint8)
        keys["tokenizer.ggml.precompiled_charsmap"] = Typed(character_map, "array[u8]")
    return keys


def _line_keys(directory: Path, document: TokenizerDocument, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of Gemma 4: BPE with merges, on text with a letter for spaces."""
    document.require_plain_bpe()
    for probe in _SPACE_PROBES:
        if "".join(_prepared(document, probe)) != probe.replace(" ", SPACE):
            raise FormatError(f"{document.label}: changes {probe!r} otherwise than by writing spaces as {SPACE!r}")
    table = line_table(document, _rows(config, document.end))
    settings = read_settings(directory)
    special = special_tokens(settings, config, table.find, size=len(table), add_bos=True)
    return {
        **_table_keys("gemma4", None, table),
        "tokenizer.ggml.scores": Typed(np.array(table.scores, np.float32), "array[f32]"),
        "tokenizer.ggml.merges": Typed(StringArray.of(merge_lines(document)), "array[str]"),
        **_id_keys(special),
        "tokenizer.ggml.add_space_prefix": Typed(False, "bool"),
        "tokenizer.ggml.add_bos_token": Typed(True, "bool"),
    }


def _ranked_keys(ranked: RankedTokens, directory: Path, config: Mapping[str, Any], *, add_bos: bool) -> dict[str, Any]:
    table = ranked.table
    special = special_tokens(
        read_settings(directory),
        config,
        table.find,
        size=len(table),
        own_ids=ranked.special_ids,
        add_bos=add_bos,
    )
    return {
        **_table_keys("gpt2", ranked.pre, table),
        "tokenizer.ggml.merges": Typed(StringArray.of(ranked.merges), "array[str]"),
        **_special_keys(special),
    }


def _rwkv_keys(table: TokenTable) -> dict[str, Any]:
    ends = {"bos": 0, "eos": 0, "unk": 0}
    turn = table.find(END_OF_TURN)
    special = SpecialTokens(ends if turn is None else {**ends, "eot": turn}, False, False)
    return {**_table_keys("rwkv", None, table), **_id_keys(special)}


def _byte_level_keys(
    directory: Path, document: TokenizerDocument, config: Mapping[str, Any], pre: str | None
) -> dict[str, Any]:
    document.require_plain_bpe()
    settings = read_settings(directory)
    cleans = settings.get("clean_up_tokenization_spaces")
    rule = Recognized(pre) if pre is not None else pre_tokenizer_of(document, cleans_spaces=cleans)
    table = byte_level_table(document, _rows(config, document.end))
    special = special_tokens(
        settings,
        config,
        table.find,
        size=len(table),
        post_processor=document.content.get("post_processor"),
    )
    return {
        **_table_keys("gpt2", rule.name, table),
        "tokenizer.ggml.merges": Typed(StringArray.of(merge_lines(document)), "array[str]"),
        **_special_keys(special),
        **({RULES_KEY: Typed(rule.kept.as_text(), "str")} if rule.kept else {}),
    }


def _sentencepiece_keys(
    directory: Path,
    document: TokenizerDocument | None,
    model: SentencePieceModel | None,
    config: Mapping[str, Any],
    pre: str | None,
) -> dict[str, Any]:
    settings = read_settings(directory)
    if model is not None:
        model.require_bpe()
    if document is not None:
        table = table_of_document(document, model, _rows(config, document.end), any_merges=pre == ANY_MERGES)
        adds_prefix = _adds_space_prefix(document)
    else:
        assert model is not None
        added = _added_entries(directory, settings)
        end = max([len(model.pieces), *(entry.token_id + 1 for entry in added)])
        table = table_of_model(model, added, _rows(config, end))
        wanted = settings.get("add_prefix_space")
        adds_prefix = wanted if isinstance(wanted, bool) else model.adds_space_prefix
    special = special_tokens(
        settings,
        config,
        table.find,
        size=len(table),
        post_processor=document.content.get("post_processor") if document is not None else None,
        own_ids=model.special_ids if model is not None else None,
        add_bos=document is None,
    )
    return {
        **_table_keys("llama", pre or "default", table),
        "tokenizer.ggml.scores": Typed(np.array(table.scores, np.float32), "array[f32]"),
        **_special_keys(special),
        "tokenizer.ggml.add_space_prefix": Typed(adds_prefix, "bool"),
    }


def _table_keys(model: str, pre: str | None, table: TokenTable) -> dict[str, Any]:
    table.check()
    return {
        "tokenizer.ggml.model": Typed(model, "str"),
        **({} if pre is None else {"tokenizer.ggml.pre": Typed(pre, "str")}),
        "tokenizer.ggml.tokens": Typed(StringArray.of(table.texts), "array[str]"),
        "tokenizer.ggml.token_type": Typed(np.array(table.types, np.int32), "array[i32]"),
    }


def _id_keys(special: SpecialTokens) -> dict[str, Any]:
    return {f"{PREFIX}{ID_KEYS[role]}_token_id": Typed(token_id, "u32") for role, token_id in special.ids.items()}


def _special_keys(special: SpecialTokens) -> dict[str, Any]:
    return {
        **_id_keys(special),
        "tokenizer.ggml.add_bos_token": Typed(special.add_bos, "bool"),
        "tokenizer.ggml.add_eos_token": Typed(special.add_eos, "bool"),
        **({} if special.add_sep is None else {"tokenizer.ggml.add_sep_token": Typed(special.add_sep, "bool")}),
    }


def _rows(config: Mapping[str, Any], end: int) -> int:
    """Return the number of embedding rows, from the top of config.json or its text model."""
    inner = config.get("text_config")
    rows = config.get("vocab_size", inner.get("vocab_size") if isinstance(inner, Mapping) else None)
    if rows is None:
        return end
    if not isinstance(rows, int) or isinstance(rows, bool) or rows < 1:
        raise FormatError(f"config.json: vocab_size is {rows!r}, expected a positive number")
    return rows


def _adds_space_prefix(document: TokenizerDocument) -> bool:
    """Return whether a tokenizer adds a space before a text; one that changes texts in another way is an error."""
    prepared = [_prepared(document, probe) for probe in _SPACE_PROBES]
    escaped = [probe.replace(" ", SPACE) for probe in _SPACE_PROBES]
    if prepared == [[text] for text in escaped]:
        return False
    if prepared == [[SPACE + text] for text in escaped]:
        return True
    raise FormatError(
        f"{document.label}: prepares {prepared[0]} from {_SPACE_PROBES[0]!r}; expected {escaped[0]!r} in one piece, "
        f"optionally with {SPACE!r} before it, like SentencePiece tokenizers"
    )


def _prepared(document: TokenizerDocument, text: str) -> list[str]:
    normalizer, rule = document.library.normalizer, document.library.pre_tokenizer
    normalized = normalizer.normalize_str(text) if normalizer else text
    return [piece for piece, _ in rule.pre_tokenize_str(normalized)] if rule else [normalized]


def _added_entries(directory: Path, settings: Mapping[str, Any]) -> Sequence[AddedEntry]:
    """Return the added tokens of a directory without tokenizer.json: from its settings, else from added_tokens.json."""
    decoder = settings.get("added_tokens_decoder")
    records = decoder.items() if isinstance(decoder, dict) else ()
    entries = {number: _entry(directory, number, record) for number, record in records}
    if not entries:
        named = read_json(directory / ADDED_TOKENS_NAME)
        entries = {number: _entry(directory, number, {"content": text}) for text, number in named.items()}
    return sorted(entries.values(), key=lambda entry: entry.token_id)


def _entry(directory: Path, number: Any, record: Any) -> AddedEntry:
    content = record.get("content") if isinstance(record, dict) else None
    if not str(number).isdecimal() or not isinstance(content, str) or not content:
        raise FormatError(f"{directory}: the added token {number!r}: {record!r:.100} is not an id with a text")
    return AddedEntry(int(number), content, bool(record.get("special")))
