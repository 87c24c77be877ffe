"""Read the tokenizer of a model: its tokens and their ids."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import FileError, FormatError
from lbrx.models.tokenizers.character_map import check_character_map
from lbrx.models.tokenizers.pattern_cost import check_pattern

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TOKENIZER_NAME = "tokenizer.json"
MAX_GROWTH = 1000
MAX_PIECE = 1024  # characters that WordPiece and Unigram compare with tokens
ADDED_TOKENS_NAME = "added_tokens.json"

# Tokenizer files that only other programs read.
_OTHER_TOKENIZERS = {
    "tokenizer.model": "a SentencePiece model",
    "spiece.model": "a SentencePiece model",
    "tekken.json": "a Tekken vocabulary",
    "vocab.json": "a vocabulary without its settings",
    "vocab.txt": "a vocabulary without its settings",
}


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token that is matched in the text before it is split into pieces, with the settings of tokenizer.json."""

    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = True
    special: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return the settings in the form of tokenizer_config.json."""
        return {
            "content": self.content,
            "lstrip": self.lstrip,
            "normalized": self.normalized,
            "rstrip": self.rstrip,
            "single_word": self.single_word,
            "special": self.special,
        }


@dataclass(frozen=True, eq=False)
class TokenizerFile:
    """A tokenizer.json: its text, the id of every token, and the added tokens, both sorted by id.

    >>> text = '{"model": {"type": "WordLevel", "vocab": {"b": 1, "a": 0}, "unk_token": "a"}}'
    >>> parse_tokenizer(text, "tokenizer.json").ids
    {'a': 0, 'b': 1}
    """

    label: str  # its name in messages
    text: str
    ids: Mapping[str, int]
    added: Mapping[str, AddedToken]

    @cached_property
    def end(self) -> int:
        """One more than the highest id."""
        return max(self.ids.values(), default=-1) + 1

    def loaded(self) -> Tokenizer:
        """Return a new instance of the tokenizer."""
        return load_tokenizer(self.text, self.label)


def read_tokenizer(directory: Path) -> TokenizerFile | None:
    """Return the tokenizer of a model directory, or None if it has none of any type.

    >>> import tempfile
    >>> read_tokenizer(Path(tempfile.mkdtemp())) is None
    True
    """
    path = directory / TOKENIZER_NAME
    if not path.is_file():
        _reject_other_tokenizers(directory)
        return None
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path}: cannot be read as text: {error}") from error
    return parse_tokenizer(text, str(path))


def _reject_other_tokenizers(directory: Path) -> None:
    for name, description in _OTHER_TOKENIZERS.items():
        if (directory / name).is_file():
            raise FileError(
                f"{directory}: has {name}, {description}, but no {TOKENIZER_NAME}, which is needed to match tokens; "
                f"expected a tokenizer in the format of the tokenizers library"
            )


def parse_tokenizer(text: str, label: str) -> TokenizerFile:
    """Parse the tokenizer in a text; errors begin with ``label``."""
    return described(load_tokenizer(text, label), text, label)


def described(tokenizer: Tokenizer, text: str, label: str) -> TokenizerFile:
    """Return the record of a loaded tokenizer."""
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    ids = dict(sorted(vocabulary.items(), key=lambda item: (item[1], item[0])))
    decoder = tokenizer.get_added_tokens_decoder()
    added = {token.content: _record(token) for _, token in sorted(decoder.items())}
    return TokenizerFile(label, text, ids, added)


def load_tokenizer(text: str, label: str) -> Tokenizer:
    """Build a tokenizer of the tokenizers library, which raises plain exceptions for invalid input."""
    from tokenizers import Tokenizer

    with library_errors(f"{label}: is not a tokenizer that the tokenizers library can read"):
        tokenizer = Tokenizer.from_str(text)
    _check_growth(tokenizer, label)
    _check_model(tokenizer, text, label)
    return tokenizer


@contextmanager
def library_errors(problem: str) -> Iterator[None]:
    """Turn errors of the tokenizers library into FormatErrors. Its panics are not an ``Exception``."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
            raise
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise FormatError(f"{problem}: {reason}") from error


def _check_growth(tokenizer: Tokenizer, label: str) -> None:
    """Raise if consecutive steps can make a text too long, or take too long."""
    for parts in ((tokenizer.normalizer, tokenizer.pre_tokenizer), (tokenizer.decoder,)):
        growth, byte_levels, prepended = 1, 0, 0
        waiting = [json.loads(part.__getstate__()) for part in parts if part is not None]
        while waiting:
            step = waiting.pop()
            waiting += next((step[key] for key in ("normalizers", "pretokenizers", "decoders") if key in step), [])
            if "Regex" in (step.get("pattern") or ()):
                check_pattern(step["pattern"]["Regex"], label)
            if step.get("type") == "ByteLevel" and len(parts) == 2:
                byte_levels += 1
                growth *= 1 if byte_levels == 1 else 2  # the letter for a byte has up to two bytes
            elif step.get("type") == "Replace":
                pattern = step.get("pattern", {}).get("String")
                growth *= max(1, len(step["content"]) // len(pattern) if pattern else len(step["content"]) + 1)
            elif step.get("type") == "Prepend":
                prepended += len(step.get("prepend") or "")
            elif step.get("type") == "Precompiled":
                check_character_map(b64decode(step["precompiled_charsmap"]), f"{label}: the character map")
        if max(growth, prepended) > MAX_GROWTH:
            by = f"{growth} times" if growth > MAX_GROWTH else f"{prepended} characters"
            raise FormatError(f"{label}: its steps make texts {by} longer, expected {MAX_GROWTH}")


def _check_model(tokenizer: Tokenizer, content: str, label: str) -> None:
    """Raise if the model compares too long pieces of a text with its tokens."""
    from tokenizers.models import Unigram, WordPiece

    model = tokenizer.model
    if isinstance(model, WordPiece) and model.max_input_chars_per_word > MAX_PIECE:
        raise FormatError(
            f"{label}: max_input_chars_per_word is {model.max_input_chars_per_word}, expected at most {MAX_PIECE}"
        )
    if isinstance(model, Unigram) and len(content) > MAX_PIECE:
        longest = max(map(len, tokenizer.get_vocab(with_added_tokens=False)), default=0)
        if longest > MAX_PIECE:
            raise FormatError(f"{label}: has a token of {longest} characters, expected at most {MAX_PIECE}")


def _record(token: Any) -> AddedToken:
    return AddedToken(
        token.content,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized,
        special=token.special,
    )
