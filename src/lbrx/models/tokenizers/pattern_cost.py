"""Find regular expressions of a tokenizer that take exponential time, by trying them on short difficult texts.

The texts repeat each letter of the pattern, and each pair of letters, with another end. A sound pattern takes
microseconds. The library gives up one match after ten million steps, so each trial ends.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from time import thread_time

from lbrx.errors import FormatError
from lbrx.models.tokenizers.pretokenizers import PRE_TOKENIZERS

_CLASSES = "aA1 \n!é中"  # a letter of each class that patterns distinguish
_MOST_LETTERS = 28
_SHORT, _LONG = 28, 1500  # characters
_SHORT_SECONDS, _LONG_SECONDS = 0.05, 0.5
_KNOWN = frozenset(pattern for row in PRE_TOKENIZERS for pattern in row.patterns)


def check_pattern(pattern: str, where: str) -> None:
    """Raise if a pattern takes too long on a short text.

    >>> check_pattern("(a|aa)+$", "tokenizer.json")
    Traceback (most recent call last):
    lbrx.errors.FormatError: tokenizer.json: the regular expression '(a|aa)+$' can take exponential time
    """
    if pattern not in _KNOWN and _is_slow(pattern):
        raise FormatError(f"{where}: the regular expression {pattern[:200]!r} can take exponential time")


@cache
def _is_slow(pattern: str) -> bool:
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import Split

    rule = Split(Regex(pattern), "isolated")
    letters = tuple(dict.fromkeys([*_CLASSES, *(each for each in pattern if each.isalnum())]))[:_MOST_LETTERS]
    short = [first + second for first, second in product(letters, repeat=2)]
    texts = [(part * (_SHORT // 2) + _other(part), _SHORT_SECONDS) for part in short]
    texts += [(letter * _LONG + _other(letter), _LONG_SECONDS) for letter in letters]
    for text, limit in texts:
        start = thread_time()
        try:
            rule.pre_tokenize_str(text)
        except BaseException as error:  # a panic of the library is not an Exception
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            return True
        if thread_time() - start > limit:
            return True
    return False


def _other(text: str) -> str:
    return "~" if "~" not in text else "a"
