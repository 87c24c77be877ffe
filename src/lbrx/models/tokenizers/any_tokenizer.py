"""The tokenizer of a model directory as tokenizer.json, made if the directory has another vocabulary only."""

from __future__ import annotations

from pathlib import Path

from lbrx.models.tokenizers.to_files import tokenizer_files
from lbrx.models.tokenizers.to_gguf import gguf_tokenizer_metadata
from lbrx.models.tokenizers.tokenizer_file import TOKENIZER_NAME, TokenizerFile, parse_tokenizer, read_tokenizer

SENTENCEPIECE_NAME = "tokenizer.model"


def read_any_tokenizer(directory: Path) -> TokenizerFile | None:
    """Return the tokenizer of a directory, or None if it has none. One of SentencePiece becomes a tokenizer.json.

    >>> import tempfile
    >>> read_any_tokenizer(Path(tempfile.mkdtemp())) is None
    True
    """
    made = made_tokenizer(directory)
    return read_tokenizer(directory) if made is None else made


def made_tokenizer(directory: Path) -> TokenizerFile | None:
    """Return the tokenizer of a tokenizer.model, None if the directory has a tokenizer.json or no SentencePiece."""
    path = directory / SENTENCEPIECE_NAME
    if (directory / TOKENIZER_NAME).is_file() or not path.is_file():
        return None
    files = tokenizer_files(gguf_tokenizer_metadata(directory, {}), where=str(path))
    content = next((file.read() for file in files if file.name == TOKENIZER_NAME), None)
    return None if content is None else parse_tokenizer(content.decode(), str(path))
