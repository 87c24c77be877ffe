"""Preprocessed shader text as tokens, and the edits that turn it into another dialect."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable
from typing import NamedTuple

from lbrx.base.fast_dataclass import dataclass
from lbrx.devices.metal.driver.errors import ShaderError

_TOKEN = re.compile(
    r"""(?P<directive>^[ \t]*\#[^\n]*)|(?P<space>\s+)"""
    r"""|(?P<string>"(?:\\.|[^"\\\n])*")|(?P<character>'(?:\\.|[^'\\\n])*')"""
    r"""|(?P<number>\.?\d(?:[eEpP][+-]|[\w.])*)|(?P<name>[A-Za-z_]\w*)"""
    r"""|(?P<operator>::|->|\+\+|--|<<=|==|!=|<=|\+=|-=|\*=|/=|%=|&=|\|=|\^=|&&|\|\||<<|.)""",
    re.MULTILINE,
)
_LINE_MARKER = re.compile(r'^# (\d+) "([^"]*)"[^\n]*\n', re.MULTILINE)
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")
_GLUED = frozenset((">>", "&&", "--", "++", "::", "[[", "<:"))


class SourceLine(NamedTuple):
    """A line of a source file."""

    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that Apple's compiler would reject, and where.

    >>> str(Problem(SourceLine("a.metal", 3), "goto statement is not supported"))
    'a.metal:3: error: goto statement is not supported'
    """

    position: SourceLine
    message: str

    def __str__(self) -> str:
        return f"{self.position.file}:{self.position.line}: error: {self.message}"


class TokenText:
    """Tokens with replacements (``edits``) and insertions behind them (``after``), both by token index.

    >>> text = TokenText("int a = 1;")
    >>> text.edits[1] = "b"
    >>> text.output()
    'int b = 1;'
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.words: list[str] = []
        self.token_types: list[str] = []
        self._spans: list[tuple[int, int]] = []
        for match in _TOKEN.finditer(text):
            token_type = match.lastgroup or ""
            if token_type not in ("space", "directive"):
                self.words.append(match.group())
                self.token_types.append(token_type)
                self._spans.append(match.span())
        for _ in range(6):  # looking a few tokens ahead never leaves the list
            self.words.append("")
            self.token_types.append("end")
            self._spans.append((len(text), len(text)))
        self.count = len(self.words) - 6
        self.edits: dict[int, str] = {}
        self.after: dict[int, str] = {}
        self.problems: list[Problem] = []
        marks = [
            (match.end(), SourceLine(match.group(2), int(match.group(1)))) for match in _LINE_MARKER.finditer(text)
        ]
        self._marks = [(0, SourceLine("<source>", 1)), *marks]
        self._mark_offsets = [offset for offset, _ in self._marks]

    def is_name(self, index: int) -> bool:
        return self.token_types[index] == "name"

    def adjacent(self, index: int) -> bool:
        """Whether nothing lies between this token and the next."""
        return self._spans[index][1] == self._spans[index + 1][0]

    def source_line(self, index: int) -> SourceLine:
        """Where a token stood before preprocessing."""
        offset = self._spans[index][0]
        start, (file, line) = self._marks[bisect.bisect_right(self._mark_offsets, offset) - 1]
        return SourceLine(file, line + self.text.count("\n", start, offset))

    def reject(self, index: int, message: str) -> None:
        self.problems.append(Problem(self.source_line(index), message))

    def append(self, index: int, text: str) -> None:
        self.after[index] = self.after.get(index, "") + text

    def delete(self, indices: Iterable[int]) -> None:
        for index in indices:
            self.edits[index] = ""

    def deleted(self, index: int) -> bool:
        return self.edits.get(index) == ""

    def closing(self, index: int) -> int:
        """The index of the bracket that closes the one at ``index``."""
        opening = self.words[index]
        closing = {"(": ")", "[": "]", "{": "}"}[opening]
        depth = 0
        for i in range(index, self.count):
            depth += (self.words[i] == opening) - (self.words[i] == closing)
            if depth == 0:
                return i
        raise ShaderError(str(Problem(self.source_line(index), f"{opening!r} is never closed")))

    def closing_angle(self, index: int) -> int | None:
        """The ``>`` of a list of template parameters or arguments that begins at ``index``, if it is one."""
        depth = nested = 0
        for i in range(index, self.count):
            word = self.words[i]
            if word in _OPENING:
                nested += 1
            elif word in _CLOSING:
                nested -= 1
            elif nested == 0 and word in "<>":
                depth += 1 if word == "<" else -1
                if depth == 0:
                    return i
            elif word == ";" and nested <= 0:
                return None
        return None

    def statement_end(self, index: int) -> int | None:
        """The semicolon that ends the statement around ``index``, or None if a block ends first."""
        depth = 0
        for i in range(index, self.count):
            word = self.words[i]
            if word == ";" and depth == 0:
                return i
            depth += (word in _OPENING) - (word in _CLOSING)
            if depth < 0:
                return None
        return None

    def split(self, start: int, end: int) -> list[tuple[int, int]]:
        """Ranges of tokens between the commas of a list."""
        parts: list[tuple[int, int]] = []
        depth, first = 0, start
        for i in range(start, end):
            word = self.words[i]
            if word in "([{<":
                depth += 1
            elif word in ")]}>":
                depth -= 1
            elif word == "," and depth == 0:
                parts.append((first, i))
                first = i + 1
        if first < end:
            parts.append((first, end))
        return parts

    def edited(self, start: int, end: int) -> str:
        """The text of a range with its edits."""
        return join_words(self.edits.get(i, self.words[i]) for i in range(start, end))

    def raw(self, start: int, end: int) -> str:
        return " ".join(self.words[start:end])

    def output(self) -> str:
        """The whole text with all edits."""
        pieces: list[str] = []
        position = 0
        for i in range(self.count):
            start, end = self._spans[i]
            pieces += (self.text[position:start], self.edits.get(i, self.words[i]), self.after.get(i, ""))
            position = end
        pieces.append(self.text[position:])
        return "".join(pieces)


def join_words(words: Iterable[str]) -> str:
    """Tokens as text, with spaces only where two of them would grow together.

    >>> join_words(["const", "float", "*", "x"])
    'const float*x'
    """
    text = ""
    for word in words:
        if not word:
            continue
        if text and ((_wordlike(text[-1]) and _wordlike(word[0])) or text[-1] + word[0] in _GLUED):
            text += " "
        text += word
    return text


def _wordlike(character: str) -> bool:
    return character.isalnum() or character in '_"'


def integer_constant(text: str) -> int:
    """The value of an integer constant expression such as an index of ``[[buffer(1 + 2)]]``.

    >>> integer_constant("1u + 0x10 * 2")
    33
    """
    tokens = re.findall(r"0[xX][0-9a-fA-F]+|\d+|[-+*/%()&|^~]|<<|>>", text)
    if "".join(tokens) != re.sub(r"(?<=[0-9a-fA-F])[uUlL]+\b|\s", "", text) or not tokens:
        raise ValueError(f"{text!r} is not an integer constant")
    python = " ".join(_python_integer(token) for token in tokens).replace("/", "//")
    try:
        return int(eval(python, {"__builtins__": {}}))  # digits, operators and parentheses only: checked above
    except (SyntaxError, TypeError, ZeroDivisionError) as error:
        raise ValueError(f"{text!r} is not an integer constant") from error


def _python_integer(token: str) -> str:
    octal = len(token) > 1 and token[0] == "0" and token.isdigit()
    return f"0o{token}" if octal else token
