"""Ids of special and added tokens against the rows of the embedding and the tokenizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lbrx.errors import LbrxError
from lbrx.files.checkpoint.opening import Checkpoint
from lbrx.files.formats.model_files import CONFIG_NAME, TOKENIZER_CONFIG_NAME
from lbrx.files.formats.strict_json import read_json
from lbrx.jobs.verify.generation import GENERATION_NAME, token_ids
from lbrx.jobs.verify.names_and_shapes import Shapes
from lbrx.jobs.verify.records import Finding, NotPossible, error, warning
from lbrx.models.architectures import automatic, known_family, text_section
from lbrx.models.tokenizers.tokenizer_file import ADDED_TOKENS_NAME, TOKENIZER_NAME, TokenizerFile, read_tokenizer

_NAMES = ("bos", "eos", "pad", "unk", "sep", "cls", "mask")
_IDS = (*(f"{name}_token_id" for name in _NAMES), "decoder_start_token_id")
_GGUF = "tokenizer.ggml."


def check_special_tokens(model: Checkpoint, shapes: Shapes) -> Iterator[Finding]:
    """Ids that no row of the embedding has are errors; those that files do not agree on are warnings."""
    if model.format.startswith("gguf"):
        yield from _check_gguf(model.metadata)
        return
    if model.config is None:
        raise NotPossible("has no config.json")
    directory = model.path if model.path.is_dir() else model.path.parent
    rows = _rows(model.config, shapes)
    if rows is None:
        raise NotPossible("the embedding and 'vocab_size' are not known")
    for name in (CONFIG_NAME, GENERATION_NAME):
        settings = read_json(directory / name)
        yield from _out_of_range(name, {**settings, **text_section(settings)}, rows)
    settings = read_json(directory / TOKENIZER_CONFIG_NAME)
    yield from _check_added(directory, settings, rows)
    if (directory / TOKENIZER_NAME).is_file():
        try:
            tokenizer = read_tokenizer(directory)
        except LbrxError as broken:  # which the check of the vocabulary reports
            raise NotPossible("the tokenizer cannot be read") from broken
        assert tokenizer is not None
        yield from _check_names(tokenizer, settings, text_section(model.config), rows)


def _rows(config: Mapping[str, Any], shapes: Shapes) -> int | None:
    """The tokens that the model has: rows of the embedding, else what the config says."""
    family = known_family(config) or automatic(shapes.keys(), config)
    try:
        names = [name for name in family.vocabulary_rows(config, shapes.keys()) if shapes.get(name)]
    except LbrxError:
        names = []
    sizes = [shapes[name][0] for name in names] or token_ids(text_section(config).get("vocab_size"))
    return min(sizes, default=None)


def _out_of_range(place: str, settings: Mapping[str, Any], rows: int) -> Iterator[Finding]:
    for key in _IDS:
        for number in token_ids(settings.get(key)):
            if number >= rows:
                yield error(place, f"{key!r} is {number}, but the embedding has {rows} rows")
            elif number < 0:
                yield warning(place, f"{key!r} is {number}, which is not a token id")


def _check_added(directory: Path, settings: Mapping[str, Any], rows: int) -> Iterator[Finding]:
    listed = settings.get("added_tokens_decoder")
    numbers = {TOKENIZER_CONFIG_NAME: [int(each) for each in listed] if isinstance(listed, Mapping) else []}
    numbers[ADDED_TOKENS_NAME] = token_ids([*read_json(directory / ADDED_TOKENS_NAME).values()])
    for place, ids in numbers.items():
        beyond = [number for number in ids if number >= rows]
        if beyond:
            text = f"has {len(beyond)} added tokens beyond the {rows} rows of the embedding, such as {min(beyond)}"
            yield error(place, text)


def _check_names(
    tokenizer: TokenizerFile, settings: Mapping[str, Any], config: Mapping[str, Any], rows: int
) -> Iterator[Finding]:
    """The tokens that tokenizer_config.json names against the tokenizer and the ids of config.json."""
    size = token_ids(config.get("vocab_size"))
    if size and rows != size[0]:
        yield warning(CONFIG_NAME, f"'vocab_size' is {size[0]}, but the embedding has {rows} rows")
    for name in _NAMES:
        token = settings.get(f"{name}_token")
        text = token.get("content") if isinstance(token, Mapping) else token
        if not isinstance(text, str) or not text:
            continue
        number, expected = tokenizer.ids.get(text), token_ids(config.get(f"{name}_token_id"))
        if number is None:
            yield warning(
                TOKENIZER_CONFIG_NAME, f"'{name}_token' is {text!r:.80}, which {TOKENIZER_NAME} does not have"
            )
        elif expected and number not in expected:
            yield warning(
                TOKENIZER_CONFIG_NAME,
                f"'{name}_token' is {text!r:.80} with the id {number}, but '{name}_token_id' of {CONFIG_NAME} is "
                f"{expected if len(expected) > 1 else expected[0]}",
            )


def _check_gguf(metadata: Mapping[str, Any]) -> Iterator[Finding]:
    tokens = metadata.get(f"{_GGUF}tokens")
    if tokens is None:
        raise NotPossible("the file has no tokens")
    for key, value in metadata.items():
        if key.startswith(_GGUF) and key.endswith("_token_id"):
            for number in token_ids(value):
                if not 0 <= number < len(tokens):
                    yield error("tokenizer", f"{key!r} is {number}, but there are {len(tokens)} tokens")
