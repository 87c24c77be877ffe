"""Read the parts of a tokenizer.json that a GGUF file needs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import FileError, FormatError
from lbrx.files.formats.strict_json import parse_object
from lbrx.models.tokenizers.known_tokenizers import PROBE, name_of_ids
from lbrx.models.tokenizers.records import AddedEntry
from lbrx.models.tokenizers.tokenizer_file import TOKENIZER_NAME, load_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer


_MOST_KNOWN_NAMES = 1000
_known_names: dict[str, str | None] = {}  # by the digest of the file


@dataclass(frozen=True, eq=False)
class TokenizerDocument:
    """The JSON of a tokenizer, and the tokenizer that the tokenizers library builds from it."""

    label: str
    content: Mapping[str, Any]
    library: Tokenizer
    digest: str  # of the file

    @property
    def known_name(self) -> str | None:
        """The name by which llama.cpp's converter knows this tokenizer, or None.

        Each file is tried once, because the library keeps some memory for the first text of every tokenizer.
        """
        if self.digest not in _known_names:
            if len(_known_names) >= _MOST_KNOWN_NAMES:
                _known_names.clear()
            _known_names[self.digest] = name_of_ids(self.library.encode(PROBE, add_special_tokens=True).ids)
        return _known_names[self.digest]

    @property
    def model(self) -> Mapping[str, Any]:
        model = self.content.get("model")
        return model if isinstance(model, dict) else {}

    @cached_property
    def pieces(self) -> dict[str, int]:
        """The tokens of the model itself, without added tokens."""
        vocabulary: dict[str, int] = self.model["vocab"]
        by_id: dict[int, str] = {}
        for text, token_id in vocabulary.items():
            other = by_id.setdefault(token_id, text)
            if other != text:
                raise FormatError(f"{self.label}: tokens {other!r} and {text!r} have the same id {token_id}")
        return vocabulary

    @cached_property
    def merges(self) -> list[tuple[str, str]]:
        """Pairs in the order of their ranks; files have two forms: ``"a b"`` and ``["a", "b"]``."""
        return [_pair(merge) for merge in self.model.get("merges") or ()]

    @cached_property
    def added(self) -> tuple[AddedEntry, ...]:
        """The added tokens sorted by id, with the ids that the library assigns."""
        decoder = self.library.get_added_tokens_decoder()
        return tuple(AddedEntry(number, token.content, token.special) for number, token in sorted(decoder.items()))

    @cached_property
    def end(self) -> int:
        """One more than the highest id."""
        ids = [*self.library.get_vocab(with_added_tokens=True).values(), *(entry.token_id for entry in self.added)]
        return max(ids, default=-1) + 1

    @property
    def is_byte_fallback(self) -> bool:
        """Whether this is SentencePiece BPE: characters, and bytes for characters that are not tokens."""
        return bool(self.model.get("byte_fallback"))

    def require_plain_bpe(self) -> None:
        """Raise unless the model is a BPE without settings that change its pieces."""
        model_type = self.model.get("type", "BPE")
        if model_type != "BPE":
            raise FormatError(f"{self.label}: is a {model_type} tokenizer, expected BPE")
        for setting in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
            if self.model.get(setting):
                raise FormatError(f"{self.label}: has {setting} {self.model[setting]!r}, for which GGUF has no key")


def _pair(merge: str | Sequence[str]) -> tuple[str, str]:
    left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    return left, right


def read_document(directory: Path) -> TokenizerDocument | None:
    """Return the tokenizer.json of a directory, or None if there is none."""
    path = directory / TOKENIZER_NAME
    if not path.is_file():
        return None
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror}") from error
    content = parse_object(raw, str(path), unique_keys=False)
    digest = hashlib.sha256(raw).hexdigest()
    return TokenizerDocument(str(path), content, load_tokenizer(raw.decode(), str(path)), digest)
