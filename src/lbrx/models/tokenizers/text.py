"""Convert text to token ids and back, with the tokenizer of a model directory or GGUF file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import FileError, UsageError
from lbrx.files.checkpoint.opening import open_checkpoint
from lbrx.files.formats.source import is_directory
from lbrx.files.formats.strict_json import read_json, reading
from lbrx.models.tokenizers.document import read_document
from lbrx.models.tokenizers.documents import tokenizer_document
from lbrx.models.tokenizers.gguf_vocabulary import plain_values, read_vocabulary
from lbrx.models.tokenizers.rwkv import Encoded, RwkvTokenizer
from lbrx.models.tokenizers.sentencepiece import MODEL_NAME
from lbrx.models.tokenizers.specials import SpecialTokens, end_ids, read_settings, special_tokens
from lbrx.models.tokenizers.to_gguf import VOCABULARY_FILES, gguf_tokenizer_metadata
from lbrx.models.tokenizers.tokenizer_file import TOKENIZER_NAME, library_errors, load_tokenizer

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

CONFIG_NAME = "config.json"


@dataclass(frozen=True, eq=False)
class TextTokenizer:
    """A tokenizer with its special tokens.

    ``vocab_size`` is one more than the highest id; a model may have more rows than that.
    """

    label: str
    special: SpecialTokens
    vocab_size: int
    _library: Tokenizer | RwkvTokenizer

    @property
    def bos_id(self) -> int | None:
        """The id that begins a text, or None."""
        return self.special.ids.get("bos")

    @property
    def eos_id(self) -> int | None:
        """The id that ends a text, or None."""
        return self.special.ids.get("eos")

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The ids that end generation: end of text and end of turn."""
        return end_ids(self.special, self.token_id)

    def token_id(self, text: str) -> int | None:
        """Return the id of a token, or None."""
        return self._library.token_to_id(text)

    def special_texts(self) -> dict[str, str]:
        """Return the texts of special tokens, as chat templates name them: ``bos_token``, ``eos_token`` and others."""
        texts = {role: self._library.id_to_token(token_id) for role, token_id in self.special.ids.items()}
        return {f"{role}_token": text for role, text in texts.items() if text is not None}

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """Return the ids of a text. ``add_special`` adds the special tokens that the model expects around it.

        Special tokens that are written out in the text always become their ids.
        """
        before, after = self._around() if add_special else ([], [])
        return [*before, *self._encoded(text).ids, *after]

    def encode_with_ends(self, text: str) -> tuple[list[int], npt.NDArray[np.int64]]:
        """Return the ids of a text with special tokens, and for each the byte of the text behind it.

        Tokens that share a character end behind it.
        """
        before, after = self._around()
        encoded = self._encoded(text)
        characters = np.array([end for _, end in encoded.offsets], np.int64)
        ends = np.maximum.accumulate(_byte_positions(text)[characters])
        whole = np.concatenate([np.zeros(len(before), np.int64), ends, np.full(len(after), len(text.encode()))])
        return [*before, *encoded.ids, *after], whole

    def _around(self) -> tuple[list[int], list[int]]:
        """The ids of the special tokens before and after a text."""
        special = self.special
        before = [special.ids["bos"]] if special.add_bos else []
        return before, [special.ids["eos"]] if special.add_eos else []

    def _encoded(self, text: str) -> Encoding | Encoded:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"the text has a lone surrogate at character {error.start}, which is not text") from error
        with library_errors(f"{self.label}: cannot encode the text"):
            return self._library.encode(text, add_special_tokens=False)

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Return the text of ids. Special tokens are skipped unless ``skip_special`` is False; unused ids are
        always skipped.
        """
        for token_id in ids:
            if not 0 <= token_id < 1 << 32:
                raise UsageError(f"{self.label}: {token_id} is not a token id, expected 0 to {self.vocab_size - 1}")
        with library_errors(f"{self.label}: cannot decode the tokens"):
            return self._library.decode(list(ids), skip_special_tokens=skip_special)


def _byte_positions(text: str) -> npt.NDArray[np.int64]:
    """Return the byte at which each character begins, and the number of bytes.

    >>> _byte_positions("aé€").tolist()
    [0, 1, 3, 6]
    """
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    widths = 1 + (codes > 0x7F).astype(np.int64) + (codes > 0x7FF) + (codes > 0xFFFF)
    return np.concatenate([[0], np.cumsum(widths)])


def open_tokenizer(path: str | Path) -> TextTokenizer:
    """Return the tokenizer of a directory (tokenizer.json or another vocabulary), or of a GGUF file or its shards.

    >>> import tempfile
    >>> model = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}
    >>> directory = Path(tempfile.mkdtemp())
    >>> written = (directory / "tokenizer.json").write_text(__import__("json").dumps({"model": model}))
    >>> open_tokenizer(directory).encode("abba")
    [2, 1, 0]
    """
    model_path = Path(path)
    with reading(model_path):
        return _open(model_path)


def _open(model_path: Path) -> TextTokenizer:
    if not is_directory(model_path):
        return _of_checkpoint(model_path)
    if (model_path / TOKENIZER_NAME).is_file():
        return _of_document(model_path)
    if any((model_path / name).is_file() for name in (MODEL_NAME, *VOCABULARY_FILES)):
        return tokenizer_of_metadata(gguf_tokenizer_metadata(model_path, {}), where=str(model_path))
    if any(child.suffix == ".gguf" for child in model_path.iterdir()):
        return _of_checkpoint(model_path)
    raise FileError(f"{model_path}: holds no {TOKENIZER_NAME}, no {MODEL_NAME} and no GGUF file")


def tokenizer_of_metadata(metadata: Mapping[str, Any], *, where: str = "GGUF metadata") -> TextTokenizer:
    """Return the tokenizer that the key-values of a GGUF file describe; errors begin with ``where``.

    It splits texts like llama.cpp, which does not normalize them to NFC.
    """
    values = plain_values(metadata)
    vocabulary = read_vocabulary(values, where)
    library: Tokenizer | RwkvTokenizer
    if vocabulary.model == "rwkv":
        library = RwkvTokenizer(vocabulary)
    else:
        library = load_tokenizer(json.dumps(tokenizer_document(vocabulary, values, composes=False)), where)
    return TextTokenizer(where, vocabulary.special, len(vocabulary.texts), library)


def _of_checkpoint(path: Path) -> TextTokenizer:
    return tokenizer_of_metadata(open_checkpoint(path).metadata, where=str(path))


def _of_document(directory: Path) -> TextTokenizer:
    document = read_document(directory)
    assert document is not None
    special = special_tokens(
        read_settings(directory),
        read_json(directory / CONFIG_NAME),
        document.library.token_to_id,
        size=document.end,
        post_processor=document.content.get("post_processor"),
    )
    return TextTokenizer(document.label, special, document.end, document.library)
