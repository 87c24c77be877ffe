"""Regular expressions that a file gives for names of modules. Their cost is bounded, because anybody may write them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from lbrx.errors import FormatError

MOST_EXPRESSIONS = 10_000
MOST_REPEATS = 3  # in one expression
MOST_STEPS = 2_000_000_000  # for all names together; 1.3 billion take a second or less
_STEPS_OF_CALL = 16
_REPEAT = re.compile(r"[*+{]")
_REPEATED_GROUP = re.compile(r"\)[*+{]")
_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\??|[)|?]", re.DOTALL)


class NamePatterns:
    """Expressions in order. ``frame`` is an expression around each, with its place as ``{}``.

    >>> patterns = NamePatterns(["layers.1.mlp", "mlp"], "config.json", frame=r"(?:.*\\.)?(?:{})$")
    >>> patterns.first_match("model.layers.1.mlp"), patterns.first_match("x.mlp"), patterns.first_match("mlp.x")
    ('layers.1.mlp', 'mlp', None)
    """

    def __init__(self, expressions: Iterable[str], where: str, frame: str = "{}") -> None:
        self._where = where
        self._steps = 0
        self._found: dict[str, str | None] = {}
        self._patterns: list[tuple[str, re.Pattern[str], int, int]] = []
        own_repeats = len(_REPEAT.findall(frame.replace("{}", "")))
        for expression in expressions:
            if len(self._patterns) == MOST_EXPRESSIONS:
                raise FormatError(f"{where} has more than {MOST_EXPRESSIONS} regular expressions")
            compiled = _compiled(expression, frame, where)
            repeats = len(_REPEAT.findall(expression)) + own_repeats
            self._patterns.append((expression, compiled, ways(expression), repeats))

    def first_match(self, name: str) -> str | None:
        """Return the first expression that matches from the beginning of a name."""
        if name not in self._found:
            self._found[name] = next((each[0] for each in self._patterns if self._matches(name, *each[1:])), None)
        return self._found[name]

    def _matches(self, name: str, pattern: re.Pattern[str], ways: int, repeats: int) -> bool:
        self._steps += _STEPS_OF_CALL + ways * len(name) ** repeats
        if self._steps > MOST_STEPS:
            raise FormatError(f"{self._where} has regular expressions that take too long to match with all names")
        return pattern.match(name) is not None


def _compiled(expression: str, frame: str, where: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(frame.replace("{}", expression))
    except (re.error, RecursionError, OverflowError) as error:
        raise FormatError(
            f"{where} has {expression!r:.60}, which is not a valid regular expression: {error}"
        ) from error
    if len(_REPEAT.findall(expression)) > MOST_REPEATS or _REPEATED_GROUP.search(expression):
        raise FormatError(
            f"{where} has {expression!r:.60}; expected at most {MOST_REPEATS} repeats and no repeated groups, which "
            "can take for ever"
        )
    return compiled


def ways(expression: str) -> int:
    """Return in how many ways the alternatives of an expression can be combined.

    >>> ways("(a|b|c)(d|e)x?"), ways("[|?]a|b"), ways("(?:a|(b|c)?)")
    (12, 2, 5)
    """
    groups = [[0, 1]]  # the sum over alternatives, and the product within the last
    for token in _TOKEN.findall(expression):
        if token[0] == "(":
            groups.append([0, 1])
        elif token == ")" and len(groups) > 1:
            inner = sum(groups.pop())
            groups[-1][1] = min(groups[-1][1] * inner, MOST_STEPS)
        elif token == "|":
            groups[-1] = [sum(groups[-1]), 1]
        elif token == "?":
            groups[-1][1] = min(2 * groups[-1][1], MOST_STEPS)
    return sum(groups[0])
