"""Convert the tokenizer files of a Hugging Face directory to the key-values of a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lbrx.errors import FileError, FormatError
from lbrx.files.formats.gguf_values import StringArray, Typed
from lbrx.files.formats.strict_json import read_json
from lbrx.models.tokenizers.byte_fallback import ANY_MERGES, table_of_document, table_of_model
from lbrx.models.tokenizers.byte_level import byte_level_table, merge_lines
from lbrx.models.tokenizers.chat import read_templates, template_keys
from lbrx.models.tokenizers.document import TokenizerDocument, read_document
from lbrx.models.tokenizers.recognition import pre_tokenizer_of
from lbrx.models.tokenizers.records import AddedEntry, TokenTable
from lbrx.models.tokenizers.sentencepiece import MODEL_NAME, SPACE, SentencePieceModel, read_sentencepiece
from lbrx.models.tokenizers.specials import SpecialTokens, read_settings, special_tokens
from lbrx.models.tokenizers.tokenizer_file import ADDED_TOKENS_NAME, TOKENIZER_NAME

ID_KEYS = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding", "eot": "eot"}
_SPACE_PROBES = ("a  b\tc\n d ", "x", "é\u0301 ﬁ 中 12  ")


def gguf_tokenizer_metadata(directory: Path, config: Mapping[str, Any], *, pre: str | None = None) -> dict[str, Any]:
    """Return the key-values that describe the tokenizer of a directory to llama.cpp.

    Byte-level BPE becomes the model ``gpt2``, SentencePiece BPE (``tokenizer.model``, or a tokenizer.json with
    byte_fallback) the model ``llama``. Ids without a token up to the ``vocab_size`` of ``config`` become unused
    ``[PADn]``; added tokens beyond it have no row and are omitted. ``pre`` is a name of ``tokenizer.ggml.pre`` for a
    tokenizer whose rule is not recognized.

    >>> import tempfile
    >>> gguf_tokenizer_metadata(Path(tempfile.mkdtemp()), {})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    lbrx.errors.FileError: ...: holds no tokenizer.json and no tokenizer.model
    """
    document = read_document(directory)
    has_model = (directory / MODEL_NAME).is_file()
    if document is not None and not document.is_byte_fallback:
        keys = _byte_level_keys(directory, document, config, pre)
    elif document is not None or has_model:
        model = read_sentencepiece(directory / MODEL_NAME) if has_model else None
        keys = _sentencepiece_keys(directory, document, model, config, pre)
    else:
        raise FileError(f"{directory}: holds no {TOKENIZER_NAME} and no {MODEL_NAME}")
    return keys | template_keys(read_templates(directory))


def _byte_level_keys(
    directory: Path, document: TokenizerDocument, config: Mapping[str, Any], pre: str | None
) -> dict[str, Any]:
    document.require_plain_bpe()
    name = pre if pre is not None else pre_tokenizer_of(document).name
    table = byte_level_table(document, _rows(config, document.end))
    special = special_tokens(
        read_settings(directory),
        config,
        table.find,
        size=len(table),
        post_processor=document.content.get("post_processor"),
    )
    return {
        **_table_keys("gpt2", name, table),
        "tokenizer.ggml.merges": Typed(StringArray.of(merge_lines(document)), "array[str]"),
        **_special_keys(special),
    }


def _sentencepiece_keys(
    directory: Path,
    document: TokenizerDocument | None,
    model: SentencePieceModel | None,
    config: Mapping[str, Any],
    pre: str | None,
) -> dict[str, Any]:
    settings = read_settings(directory)
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


def _table_keys(model: str, pre: str, table: TokenTable) -> dict[str, Any]:
    table.check()
    return {
        "tokenizer.ggml.model": Typed(model, "str"),
        "tokenizer.ggml.pre": Typed(pre, "str"),
        "tokenizer.ggml.tokens": Typed(StringArray.of(table.texts), "array[str]"),
        "tokenizer.ggml.token_type": Typed(np.array(table.types, np.int32), "array[i32]"),
    }


def _special_keys(special: SpecialTokens) -> dict[str, Any]:
    ids = {f"tokenizer.ggml.{ID_KEYS[role]}_token_id": Typed(token_id, "u32") for role, token_id in special.ids.items()}
    return {
        **ids,
        "tokenizer.ggml.add_bos_token": Typed(special.add_bos, "bool"),
        "tokenizer.ggml.add_eos_token": Typed(special.add_eos, "bool"),
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
