"""Metal has no recursion: a search for cycles in the calls of clang's dump of the syntax tree."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import field

from lbrx.base.fast_dataclass import dataclass
from lbrx.devices.metal.emulator.tokens import Problem, SourceLine, TokenText

_FUNCTION = re.compile(
    r"^(?P<indent>[|` -]*)(?:FunctionDecl|CXXMethodDecl) (?P<id>0x[0-9a-f]+)(?: parent 0x[0-9a-f]+)?"
    r"(?: prev (?P<previous>0x[0-9a-f]+))? <[^>]*>.*? (?P<name>[\w:~]+) '"
)
_REFERENCE = re.compile(r" (?:Function|CXXMethod) (0x[0-9a-f]+) '|(?:->|\.)[\w~]+ (0x[0-9a-f]+)$")
_NODE_START = re.compile(r"^[|` -]*")


@dataclass(slots=True)
class _Function:
    name: str
    calls: set[str] = field(default_factory=set)


def lint_recursion(lines: Iterable[str], text: TokenText) -> list[Problem]:
    """One problem per function that calls itself, at once or through others."""
    functions: dict[str, _Function] = {}
    canonical: dict[str, str] = {}
    enclosing: list[tuple[int, str]] = []
    for line in lines:
        start = _NODE_START.match(line)
        depth = start.end() if start else 0
        while enclosing and depth <= enclosing[-1][0]:
            enclosing.pop()
        match = _FUNCTION.match(line)
        if match:
            identity, previous = match["id"], match["previous"]
            canonical[identity] = canonical.get(previous, previous) if previous else identity
            functions.setdefault(canonical[identity], _Function(match["name"]))
            enclosing.append((depth, canonical[identity]))
        elif enclosing:
            for reference in _REFERENCE.finditer(line):
                functions[enclosing[-1][1]].calls.add(reference[1] or reference[2])
    for function in functions.values():
        function.calls = {canonical[call] for call in function.calls if call in canonical}
    cyclic = (function.name for identity, function in functions.items() if _reaches(functions, identity))
    return [
        Problem(_declaration(text, name), f"recursion is not supported: '{name}' calls itself")
        for name in dict.fromkeys(cyclic)
    ]


def _declaration(text: TokenText, name: str) -> SourceLine:
    """Where a function is first named with parameters."""
    for i in range(text.count):
        if text.words[i] == name and text.words[i + 1] == "(":
            return text.source_line(i)
    return text.source_line(0)


def _reaches(functions: dict[str, _Function], start: str) -> bool:
    """Whether a function can come back to itself."""
    seen: set[str] = set()
    waiting = list(functions[start].calls)
    while waiting:
        current = waiting.pop()
        if current == start:
            return True
        if current not in seen:
            seen.add(current)
            waiting += functions[current].calls
    return False
