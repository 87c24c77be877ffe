"""Which pre-tokenizer a tokenizer.json has: the one that cuts a difficult text into the same pieces.

A rule may be written in several ways, so that files in other words than ours are not compared, but what they do. The
text has every sequence of three characters out of a set that has each kind of character the known rules tell apart,
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
    """A text that has each sequence of three characters once: a de Bruijn sequence, made of Lyndon words in order.

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
    """The texts that rules are compared on: a short one that most differ in already, and a long one.

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
    """The rule that a byte-level tokenizer follows, or an error if none of the known ones cuts the text as it does."""
    nfc = _composes(document.content.get("normalizer"), document.label)
    rule = document.library.pre_tokenizer
    if rule is None:
        raise FormatError(f"{document.label}: does not cut the text into words (no pre_tokenizer); {_UNKNOWN}")
    same_cut = written_as(document.content.get("pre_tokenizer")) or cutting_as(rule)
    candidates = [row for row in same_cut if row.nfc == nfc]
    if not candidates:
        difference = f"with {'NFC' if nfc else 'no'} normalization" if same_cut else "with this rule"
        written = json.dumps(document.content.get("pre_tokenizer"), ensure_ascii=False)
        raise FormatError(
            f"{document.label}: no known pre-tokenizer cuts texts as this one does {difference}: {written:.300}; "
            f"{_UNKNOWN}"
        )
    return _by_merges(candidates, document)


def written_as(pre_tokenizer: Any) -> tuple[PreTokenizer, ...]:
    """The known rules that a file has in just these words: what `cutting_as` would find, without trying it out.

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
    """The known rules that cut the texts into the same pieces as this one."""
    same_cut = PRE_TOKENIZERS
    for text in probe_texts():
        pieces = rule.pre_tokenize_str(text)
        same_cut = tuple(row for row in same_cut if _library_rule(row).pre_tokenize_str(text) == pieces)
    return same_cut


def _by_merges(candidates: list[PreTokenizer], document: TokenizerDocument) -> PreTokenizer:
    """Of rules that cut alike, the one that treats whole words as the file does."""
    ignores_merges = bool(document.model.get("ignore_merges"))
    for row in candidates:
        if row.ignores_merges == ignores_merges:
            return row
    unreached = next(_unreached(document), None)
    if unreached is not None:
        raise FormatError(
            f"{document.label}: ignore_merges is {ignores_merges}, but pre-tokenizer {candidates[0].name!r} demands "
            f"{not ignores_merges}, and the merges do not make token {unreached!r}"
        )
    return candidates[0]


def _unreached(document: TokenizerDocument) -> Iterator[str]:
    """Tokens that are not what the merges make of their own text; without any, ignore_merges changes nothing."""
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
    """Whether a text is brought into composed form; any other change of it is an error."""
    steps = normalizer.get("normalizers", [normalizer]) if isinstance(normalizer, dict) else []
    for step in steps:
        if step.get("type") != "NFC":
            raise FormatError(f"{label}: the normalizer {step.get('type')} changes texts; expected none or NFC")
    return bool(steps)
