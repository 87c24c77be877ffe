"""The tokenizer files of the output, as changes to those of the model that the tokenizer comes from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lbrx.files.formats.strict_json import json_bytes, read_json
from lbrx.jobs.merge.vocabulary.records import VocabularyPlan
from lbrx.models.tokenizers.any_tokenizer import made_tokenizer
from lbrx.models.tokenizers.chat_templates import CONFIG_NAME, OLD_TEMPLATE_NAME, TEMPLATE_NAME
from lbrx.models.tokenizers.tokenizer_file import ADDED_TOKENS_NAME, TOKENIZER_NAME, TokenizerFile

# The same vocabulary for other programs; with tokens left out they would disagree with tokenizer.json.
_OTHER_VOCABULARIES = ("tokenizer.model", "vocab.json", "vocab.txt", "merges.txt", "tekken.json")


def tokenizer_changes(
    directory: Path, *, vocabulary: VocabularyPlan | None = None, template: str | None = None
) -> dict[str, bytes | None]:
    """The files that differ from those in the directory of a tokenizer: new bytes, or None for one to leave out.

    >>> import tempfile
    >>> changes = tokenizer_changes(Path(tempfile.mkdtemp()), template="{{ messages }}")
    >>> sorted(changes), changes["chat_template.jinja"]
    (['chat_template.jinja', 'tokenizer_config.json'], b'{{ messages }}')
    """
    changes: dict[str, bytes | None] = {}
    settings = read_json(directory / CONFIG_NAME)
    if vocabulary is not None and not _holds(directory, vocabulary.tokenizer):
        changes |= _vocabulary_changes(directory, vocabulary.tokenizer)
        if "added_tokens_decoder" in settings:
            settings["added_tokens_decoder"] = _added_tokens_decoder(vocabulary.tokenizer)
            changes[CONFIG_NAME] = json_bytes(settings)
    if template is not None:
        # Newer programs read the separate file, older ones the key in the settings.
        settings["chat_template"] = template
        changes |= {CONFIG_NAME: json_bytes(settings), TEMPLATE_NAME: template.encode()}
        if (directory / OLD_TEMPLATE_NAME).is_file():
            changes[OLD_TEMPLATE_NAME] = None
    return changes


def _holds(directory: Path, tokenizer: TokenizerFile) -> bool:
    path = directory / TOKENIZER_NAME
    if path.is_file():
        return path.read_bytes() == tokenizer.text.encode()
    made = made_tokenizer(directory)
    return made is not None and made.text == tokenizer.text


def _vocabulary_changes(directory: Path, tokenizer: TokenizerFile) -> dict[str, bytes | None]:
    changes: dict[str, bytes | None] = {TOKENIZER_NAME: tokenizer.text.encode()}
    pieces = _pieces(tokenizer)
    if (directory / ADDED_TOKENS_NAME).is_file():
        added = {token: tokenizer.ids[token] for token in tokenizer.added if token not in pieces}
        changes[ADDED_TOKENS_NAME] = json_bytes(added)
    if pieces != _pieces_of(read_json(directory / TOKENIZER_NAME)):
        changes |= {name: None for name in _OTHER_VOCABULARIES if (directory / name).is_file()}
    return changes


def _pieces(tokenizer: TokenizerFile) -> set[str]:
    return _pieces_of(json.loads(tokenizer.text))


def _pieces_of(document: dict[str, Any]) -> set[str]:
    """The tokens of the tokenizer's model, without the added ones."""
    vocabulary = document.get("model", {}).get("vocab") or ()
    return {entry[0] for entry in vocabulary} if isinstance(vocabulary, list) else set(vocabulary)


def _added_tokens_decoder(tokenizer: TokenizerFile) -> dict[str, dict[str, Any]]:
    by_id = sorted(((tokenizer.ids[token], record) for token, record in tokenizer.added.items()), key=lambda x: x[0])
    return {str(token_id): record.as_json() for token_id, record in by_id}
