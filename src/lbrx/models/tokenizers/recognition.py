"""Recognize the pre-tokenizer of a tokenizer.json: the known rule that splits a difficult text into the same pieces.

The same rule can be written in several ways, so behavior is compared instead of text. The probe contains every
sequence of three characters from a set with one character of each class that the known rules distinguish,
and then words with apostrophes and runs of digits and spaces.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Any

from lbrx.errors import FormatError
from lbrx.models.tokenizers.document import TokenizerDocument
from lbrx.models.tokenizers.pretokenizers import GPT2, PRE_TOKENIZERS, PreTokenizer, as_split

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer as Rule

# Letters by case and script, a combining mark, digits, punctuation and symbols inside and outside ASCII, white space.
_CHARACTERS = ("a", "B", "é", "É", "ǅ", "ʰ", "中", "あ", "가", "\u0301", "7", "٣", "Ⅷ")
_SIGNS = ("'", ".", "/", "$", "`", "…", "。", "😀", "\u200d", "\x07", " ", "\t", "\n", "\r", "\u00a0")
_ENDINGS = ("s", "t", "re", "ve", "m", "ll", "d", "x", "sx")
_UNKNOWN = "expected one that llama.cpp knows (pass its name as `pre` if this is one under another form)"


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


def pre_tokenizer_of(document: TokenizerDocument) -> PreTokenizer:
    """Return the rule that a byte-level tokenizer follows; raise if no known rule splits the text in the same
    way.
    """
    nfc = _composes(document.content.get("normalizer"), document.label)
    rule = document.library.pre_tokenizer
    if rule is None:
        raise FormatError(f"{document.label}: does not split the text into words (no pre_tokenizer); {_UNKNOWN}")
    same_cut = written_as(document.content.get("pre_tokenizer")) or cutting_as(rule)
    candidates = [row for row in same_cut if row.nfc == nfc]
    if not candidates:
        difference = f"with {'NFC' if nfc else 'no'} normalization" if same_cut else "with this rule"
        written = json.dumps(document.content.get("pre_tokenizer"), ensure_ascii=False)
        raise FormatError(
            f"{document.label}: no known pre-tokenizer splits texts in the same way {difference}: {written:.300}; "
            f"{_UNKNOWN}"
        )
    return _by_merges(candidates, document)


def written_as(pre_tokenizer: Any) -> tuple[PreTokenizer, ...]:
    """Return the known rules with exactly the text of the file: the result of `cutting_as` without running it.

    >>> [row.name for row in written_as({"type": "ByteLevel", "add_prefix_space": False, "use_regex": True})]
    ['gpt-2', 'olmo']
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
    return tuple(row for row in PRE_TOKENIZERS if row.patterns == patterns)


def _is_byte_level(step: Mapping[str, Any], *, use_regex: bool) -> bool:
    return (
        step.get("type") == "ByteLevel"
        and step.get("add_prefix_space") is False
        and step.get("use_regex", True) is use_regex
    )


def cutting_as(rule: Rule) -> tuple[PreTokenizer, ...]:
    """Return the known rules that split the texts into the same pieces as this one."""
    same_cut = PRE_TOKENIZERS
    for text in probe_texts():
        pieces = rule.pre_tokenize_str(text)
        same_cut = tuple(row for row in same_cut if _library_rule(row).pre_tokenize_str(text) == pieces)
    return same_cut


def _by_merges(candidates: list[PreTokenizer], document: TokenizerDocument) -> PreTokenizer:
    """Return, among equivalent rules, the one that treats whole words like the file."""
    ignores_merges = bool(document.model.get("ignore_merges"))
    for row in candidates:
        if row.ignores_merges == ignores_merges:
            return row
    unreached = next(_unreached(document), None)
    if unreached is not None:
        raise FormatError(
            f"{document.label}: ignore_merges is {ignores_merges}, but pre-tokenizer {candidates[0].name!r} requires "
            f"{not ignores_merges}, and the merges do not produce token {unreached!r}"
        )
    return candidates[0]


def _unreached(document: TokenizerDocument) -> Iterator[str]:
    """Return tokens that the merges do not produce from their own text; without any, ignore_merges has no effect."""
    from tokenizers.models import BPE

    model = BPE(document.pieces, document.merges)
    added = {entry.content for entry in document.added}
    return (text for text in document.pieces if text not in added and len(model.tokenize(text)) != 1)


@cache
def _library_rule(row: PreTokenizer) -> Rule:
    from tokenizers import Tokenizer

    empty = {"type": "BPE", "vocab": {}, "merges": []}
    tokenizer = Tokenizer.from_str(json.dumps({"pre_tokenizer": row.as_json(), "model": empty}))
    rule: Rule = tokenizer.pre_tokenizer
    return rule


def _composes(normalizer: Any, label: str) -> bool:
    """Return whether a text is normalized to NFC; any other normalization is an error."""
    steps = normalizer.get("normalizers", [normalizer]) if isinstance(normalizer, dict) else []
    for step in steps:
        if step.get("type") != "NFC":
            raise FormatError(f"{label}: the normalizer {step.get('type')} changes texts; expected none or NFC")
    return bool(steps)
