"""Convert the key-values of a GGUF file to tokenizer files for the tokenizers library and transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lbrx.files.formats.strict_json import json_bytes
from lbrx.files.output.plan import SideFile
from lbrx.models.tokenizers.chat import DEFAULT, templates_of_keys
from lbrx.models.tokenizers.chat_templates import CONFIG_NAME, TEMPLATE_NAME
from lbrx.models.tokenizers.documents import tokenizer_document
from lbrx.models.tokenizers.gguf_vocabulary import GgufVocabulary, plain_values, read_vocabulary
from lbrx.models.tokenizers.rwkv import RWKV_NAME, vocabulary_lines
from lbrx.models.tokenizers.tokenizer_file import TOKENIZER_NAME


def tokenizer_files(metadata: Mapping[str, Any], *, where: str = "GGUF metadata") -> tuple[SideFile, ...]:
    """Return tokenizer.json and tokenizer_config.json for the tokenizer of a GGUF file, and its chat
    template. RWKV tokenizers have a vocabulary file of their own instead of tokenizer.json.

    They split texts like llama.cpp. They include NFC normalization for models that use it, such as Qwen;
    llama.cpp omits that step. Errors begin with ``where``.

    >>> tokenizer_files({"tokenizer.ggml.model": "plamo2"})
    Traceback (most recent call last):
    lbrx.errors.FormatError: GGUF metadata: has a tokenizer of model 'plamo2', expected one of gpt2, llama, bert, t5, \
gemma4, rwkv as tokenizer.ggml.model
    """
    values = plain_values(metadata)
    vocabulary = read_vocabulary(values, where)
    templates = templates_of_keys(values)
    if vocabulary.model == "rwkv":
        added: list[dict[str, Any]] = []
        tokens = SideFile(RWKV_NAME, vocabulary_lines(vocabulary).encode())
    else:
        document = tokenizer_document(vocabulary, values)
        added = document["added_tokens"]
        tokens = SideFile(TOKENIZER_NAME, (json.dumps(document, ensure_ascii=False) + "\n").encode())
    files = [tokens, SideFile(CONFIG_NAME, json_bytes(_settings(vocabulary, added, values, templates)))]
    if list(templates) == [DEFAULT]:
        files.append(SideFile(TEMPLATE_NAME, templates[DEFAULT].encode()))
    return tuple(files)


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
    if special.add_sep is not None:
        settings["add_sep_token"] = special.add_sep
    if context is not None:
        settings["model_max_length"] = int(context)
    if list(templates) == [DEFAULT]:
        settings["chat_template"] = templates[DEFAULT]
    elif templates:
        settings["chat_template"] = [{"name": name, "template": text} for name, text in templates.items()]
    return settings
