"""Recognize the pre-tokenizer of a tokenizer.json: a tokenizer that llama.cpp's converter knows, or the known rule that
splits a difficult text into the same pieces.

The same rule can be written in several ways, so behavior is compared instead of text. The probe contains every
sequence of three characters from a set with one character of each class that the known rules distinguish,
and then words with apostrophes and runs of digits and spaces.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import FormatError
from lbrx.models.tokenizers.document import TokenizerDocument
from lbrx.models.tokenizers.kept_rules import KeptRules
from lbrx.models.tokenizers.pretokenizers import GPT2, PRE_TOKENIZERS, PreTokenizer, as_split

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer as Rule

# Letters by case and script, a combining mark, digits, punctuation and symbols inside and outside ASCII, white space.
_CHARACTERS = ("a", "B", "é", "É", "ǅ", "ʰ", "中", "あ", "가", "\u0301", "7", "٣", "Ⅷ")
_SIGNS = ("'", ".", "/", "$", "`", "…", "。", "😀", "\u200d", "\x07", " ", "\t", "\n", "\r", "\u00a0")
_ENDINGS = ("s", "t", "re", "ve", "m", "ll", "d", "x", "sx")
_UNKNOWN = "expected one that llama.cpp knows (pass its name as `pre` if this is one under another form)"
_FALLBACK = "default"
_BYTE_LEVEL_RULES = tuple(row for row in PRE_TOKENIZERS if not row.lines)


@dataclass(frozen=True, slots=True)
class Recognized:
    """The name for ``tokenizer.ggml.pre``, and the rules themselves if the name does not say all."""

    name: str
    kept: KeptRules | None = None


def every_triple(characters: Sequence[str]) -> str:
    """Return a text that contains each sequence of three characters once: a de Bruijn sequence, made of Lyndon words in
    order.

    >>> every_triple("01")
    '0001011100'
    """
    text: list[str] = []
    word = [-1]
    while word:
        word[-1] += 1
        if 3 % len(word) == 0:
            text += [characters[number] for number in word]
        period = len(word)
        while len(word) < 3:
            word.append(word[-period])
        while word and word[-1] == len(characters) - 1:
            word.pop()
    return "".join([*text, *text[:2]])


@cache
def probe_texts() -> tuple[str, str]:
    """Return the probe texts: a short one on which most rules already differ, and a long one.

    >>> [len(text) > 1_000 for text in probe_texts()]
    [True, True]
    """
    endings = "".join(
        f"{before}'{ending}{after}"
        for ending in (*_ENDINGS, *map(str.upper, _ENDINGS), *map(str.title, _ENDINGS))
        for before, after in product(("we", "We", " ", "7", "'"), ("", " ", "B", "!"))
    )
    runs = "".join(f"{sign * count}a{sign * count}7 {sign * count}." for sign in "1٣ \n-B" for count in range(1, 9))
    return f"{endings}{runs}end \n ", every_triple(_CHARACTERS + _SIGNS)


def pre_tokenizer_of(document: TokenizerDocument, *, cleans_spaces: bool | None = None) -> Recognized:
    """Return the name of the rule that a byte-level tokenizer follows.

    Without a known rule the name is ``default``, the rules are kept, and a warning says so. ``cleans_spaces`` decides
    between names that differ in this setting only.
    """
    nfc = _composes(document.content.get("normalizer"), document.label)
    rule = document.library.pre_tokenizer
    if rule is None:
        raise FormatError(f"{document.label}: does not split the text into words (no pre_tokenizer); {_UNKNOWN}")
    if not any(step.get("type") == "ByteLevel" for step in _steps(document.content.get("pre_tokenizer"))):
        raise FormatError(f"{document.label}: does not split the text into bytes (ByteLevel); {_UNKNOWN}")
    name = _known_name(document)
    if name is not None:
        return Recognized(name)
    same_cut = written_as(document.content.get("pre_tokenizer")) or cutting_as(rule)
    candidates = [row for row in same_cut if row.nfc == nfc]
    if candidates:
        return Recognized(_chosen(candidates, document, cleans_spaces).name)
    kept = KeptRules.of_document(document.content)
    if same_cut:
        row = _chosen(list(same_cut), document, cleans_spaces)
        warnings.warn(
            f"{document.label}: {'normalizes' if nfc else 'does not normalize'} texts to NFC, "
            f"unlike other tokenizers with the pre-tokenizer {row.name!r}; the GGUF file keeps this rule for lbrx",
            stacklevel=2,
        )
        return Recognized(row.name, kept)
    written = json.dumps(document.content.get("pre_tokenizer"), ensure_ascii=False)
    warnings.warn(
        f"{document.label}: llama.cpp has no pre-tokenizer that splits texts like this one, so it will split some "
        f"texts in another way ({_FALLBACK!r}); the GGUF file keeps the rule for lbrx: {written:.300}",
        stacklevel=2,
    )
    return Recognized(_FALLBACK, kept)


def _known_name(document: TokenizerDocument) -> str | None:
    """Return the name of a tokenizer that llama.cpp's converter recognizes, if it is a byte-level one."""
    name = document.known_name
    ignores_merges = bool(document.model.get("ignore_merges"))
    rows = (row for row in _BYTE_LEVEL_RULES if row.name == name and row.ignores_merges == ignores_merges)
    return next((row.name for row in rows), None)


def _steps(pre_tokenizer: Any) -> Sequence[Mapping[str, Any]]:
    if not isinstance(pre_tokenizer, dict):
        return ()
    return pre_tokenizer.get("pretokenizers") or (pre_tokenizer,)


def written_as(pre_tokenizer: Any) -> tuple[PreTokenizer, ...]:
    """Return the known rules with exactly the text of the file: the result of `cutting_as` without running it.

    >>> written_as({"type": "ByteLevel", "add_prefix_space": False, "use_regex": True})[0].name
    'gpt-2'
    """
    if not isinstance(pre_tokenizer, dict):
        return ()
    if _is_byte_level(pre_tokenizer, use_regex=True):
        patterns: tuple[Any, ...] = (GPT2,)
    elif pre_tokenizer.get("type") == "Sequence" and pre_tokenizer.get("pretokenizers"):
        *cuts, last = pre_tokenizer["pretokenizers"]
        patterns = tuple(cut.get("pattern", {}).get("Regex") for cut in cuts)
        if not _is_byte_level(last, use_regex=False) or cuts != [as_split(pattern) for pattern in patterns]:
            return ()
    else:
        return ()
    return tuple(row for row in _BYTE_LEVEL_RULES if row.patterns == patterns)


def _is_byte_level(step: Mapping[str, Any], *, use_regex: bool) -> bool:
    return (
        step.get("type") == "ByteLevel"
        and step.get("add_prefix_space") is False
        and step.get("use_regex", True) is use_regex
    )


def cutting_as(rule: Rule) -> tuple[PreTokenizer, ...]:
    """Return the known rules that split the texts into the same pieces as this one."""
    same_cut = tuple(dict.fromkeys(row.patterns for row in _BYTE_LEVEL_RULES))
    for text in probe_texts():
        pieces = rule.pre_tokenize_str(text)
        same_cut = tuple(patterns for patterns in same_cut if _library_rule(patterns).pre_tokenize_str(text) == pieces)
    return tuple(row for row in _BYTE_LEVEL_RULES if row.patterns in same_cut)


def _chosen(candidates: list[PreTokenizer], document: TokenizerDocument, cleans_spaces: bool | None) -> PreTokenizer:
    """Return, among equivalent rules, the one that treats whole words and spaces like the file."""
    ignores_merges = bool(document.model.get("ignore_merges"))
    same = [row for row in candidates if row.ignores_merges == ignores_merges]
    if not same:
        unreached = next(_unreached(document), None)
        if unreached is not None:
            raise FormatError(
                f"{document.label}: ignore_merges is {ignores_merges}, but pre-tokenizer {candidates[0].name!r} "
                f"requires {not ignores_merges}, and the merges do not produce token {unreached!r}"
            )
        same = candidates
    return next((row for row in same if row.cleans_spaces == cleans_spaces), same[0])


def _unreached(document: TokenizerDocument) -> Iterator[str]:
    """Return tokens that the merges do not produce from their own text; without any, ignore_merges has no effect."""
    from tokenizers.models import BPE

    model = BPE(document.pieces, document.merges)
    added = {entry.content for entry in document.added}
    return (text for text in document.pieces if text not in added and len(model.tokenize(text)) != 1)


@cache
def _library_rule(patterns: tuple[str, ...]) -> Rule:
    from tokenizers import Tokenizer

    written = PreTokenizer("", patterns).as_json()
    empty = {"type": "BPE", "vocab": {}, "merges": []}
    tokenizer = Tokenizer.from_str(json.dumps({"pre_tokenizer": written, "model": empty}))
    rule: Rule = tokenizer.pre_tokenizer
    return rule


def _composes(normalizer: Any, label: str) -> bool:
    """Return whether a text is normalized to NFC; any other normalization is an error."""
    steps = normalizer.get("normalizers", [normalizer]) if isinstance(normalizer, dict) else []
    for step in steps:
        if step.get("type") != "NFC":
            raise FormatError(f"{label}: the normalizer {step.get('type')} changes texts; expected none or NFC")
    return bool(steps)
