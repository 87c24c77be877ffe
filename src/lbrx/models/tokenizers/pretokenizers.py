"""The rules by which byte-level tokenizers split a text before merging, by the names of ``tokenizer.ggml.pre``.

A row is a list of patterns: each splits the pieces of the previous one into matches and the text between them. The
patterns are those of the models' own tokenizer.json files; llama.cpp knows the names and has the same rules built in.
"""

from __future__ import annotations

from typing import Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import FormatError, nearest

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_PUNCTUATION = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE_WORD = r"[^\r\n\p{L}\p{N}]?"


def _plain_words(digits: str) -> str:
    return rf"{_CONTRACTIONS}|{_BEFORE_WORD}\p{{L}}+|{digits}|{_PUNCTUATION}|{_SPACES}"


def _cased_words(digits: str, after_word: str) -> str:
    """Return a pattern in which words end between lower case and upper case."""
    lower_end = f"{_BEFORE_WORD}{_UPPER}*{_LOWER}+{after_word}"
    upper_start = f"{_BEFORE_WORD}{_UPPER}+{_LOWER}*{after_word}"
    return rf"{lower_end}|{upper_start}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"


_DEEPSEEK_WORDS = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"""| ?[\p{P}\p{S}]+[\r\n]*|""" + _SPACES
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """A splitting rule, and the other settings that its name implies in llama.cpp.

    ``ignores_merges``: a piece that is a token is used directly. ``adds_bos``: the default if the file has no key.
    ``nfc``: the models with this name normalize to NFC first, which llama.cpp leaves to the caller.
    """

    name: str
    patterns: tuple[str, ...]
    nfc: bool = False
    ignores_merges: bool = False
    adds_bos: bool = False
    aliases: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the rule in the form of tokenizer.json."""
        cuts = [as_split(pattern) for pattern in self.patterns]
        to_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        return {"type": "Sequence", "pretokenizers": [*cuts, to_bytes]}


def as_split(pattern: str) -> dict[str, Any]:
    """Return a split by a pattern in the form of tokenizer.json."""
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


PRE_TOKENIZERS: tuple[PreTokenizer, ...] = (
    PreTokenizer(
        "llama-bpe",
        (_plain_words(r"\p{N}{1,3}"),),
        ignores_merges=True,
        adds_bos=True,
        aliases=("llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
    ),
    PreTokenizer("dbrx", (_plain_words(r"\p{N}{1,3}"),), aliases=("smaug-bpe", "chatglm-bpe", "glm4")),
    PreTokenizer("qwen2", (_plain_words(r"\p{N}"),), nfc=True, aliases=("megrez",)),
    PreTokenizer("deepseek-r1-qwen", (_plain_words(r"\p{N}"),), aliases=("stablelm2", "hunyuan", "grok-2")),
    PreTokenizer(
        "qwen35",
        (
            rf"{_CONTRACTIONS}|{_BEFORE_WORD}[\p{{L}}\p{{M}}]+|\p{{N}}"
            rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}",
        ),
        nfc=True,
    ),
    PreTokenizer("tekken", (_cased_words(r"\p{N}", ""),), ignores_merges=True, adds_bos=True),
    PreTokenizer(
        "gpt-4o", (_cased_words(r"\p{N}{1,3}", f"{_CONTRACTIONS}?"),), aliases=("llama4", "kanana2", "minimax-m2")
    ),
    PreTokenizer("gpt-2", (GPT2,), aliases=("phi-2", "jais", "exaone4", "a.x-4.0", "trillion", "granite-docling")),
    PreTokenizer("olmo", (GPT2,), nfc=True, aliases=("mpt",)),
    PreTokenizer(
        "starcoder",
        (r"\p{N}", GPT2),
        aliases=("smollm", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"),
    ),
    PreTokenizer("command-r", (r"\p{N}", GPT2), nfc=True),
    PreTokenizer("falcon", (r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]")),
    PreTokenizer("deepseek-v3", (r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK_WORDS), aliases=("hunyuan-dense",)),
    PreTokenizer("deepseek-coder", (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}")),
    PreTokenizer("default", (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
)
_BY_NAME = {name: row for row in PRE_TOKENIZERS for name in (row.name, *row.aliases)}


def pre_tokenizer_named(name: str, where: str) -> PreTokenizer:
    """Return the rule with this name; errors begin with ``where``.

    >>> pre_tokenizer_named("llama3", "a.gguf").name
    'llama-bpe'
    """
    pretokenizer = _BY_NAME.get(name)
    if pretokenizer is None:
        known = ", ".join(row.name for row in PRE_TOKENIZERS)
        raise FormatError(
            f"{where}: the pre-tokenizer {name!r} is unknown{nearest(name, _BY_NAME)}; expected one of {known}"
        )
    return pretokenizer
