"""``c ? device_pointer[i] : T(...)``: clang wants both operands of class type in one address space, Metal does not.

Operands that are plainly lvalues or calls are copied to a value. For the rest, clang's own error tells the line
(``retry_lines``), and there both operands are copied, whatever they are.
"""

from __future__ import annotations

from collections.abc import Set

from lbrx.devices.metal.emulator.tokens import SourceLine, TokenText

_COPY = "(metal::__rvc(), "
_NOT_LVALUES = frozenset(["true", "false", "sizeof", "as_type", "static_cast", "reinterpret_cast", "nullptr"])
_ENDS = frozenset((";", ",", ")", "]", "}"))


def rewrite_conditionals(text: TokenText, retry_lines: Set[SourceLine]) -> None:
    """Copy the operands of conditional expressions that may lie in different address spaces."""
    for i in range(text.count):
        if text.words[i] != "?":
            continue
        colon = _matching_colon(text, i)
        if colon is None:
            continue
        if retry_lines and text.source_line(i) in retry_lines:
            _wrap(text, i + 1, colon, _COPY)
            _wrap(text, colon + 1, _operand_end(text, colon + 1), _COPY)
            continue
        for start, ends in ((i + 1, frozenset(":")), (colon + 1, _ENDS)):
            _copy_operand(text, start, ends)


def _copy_operand(text: TokenText, start: int, ends: Set[str]) -> None:
    end = _lvalue_end(text, start)
    if end is not None and text.words[end] in ends:
        _wrap(text, start, end, "metal::__rv(")
        return
    end = _call_end(text, start)
    if end is not None and text.words[end] in ends:
        _wrap(text, start, end, _COPY)


def _wrap(text: TokenText, start: int, end: int, prefix: str) -> None:
    text.edits[start] = prefix + text.edits.get(start, text.words[start])
    text.after[end - 1] = ")" + text.after.get(end - 1, "")


def _matching_colon(text: TokenText, question: int) -> int | None:
    depth = inner = 0
    for i in range(question + 1, text.count):
        word = text.words[i]
        if word in "([{":
            depth += 1
        elif word in ")]}":
            depth -= 1
        elif word == "?" and depth == 0:
            inner += 1
        elif word == ":" and depth == 0:
            if inner == 0:
                return i
            inner -= 1
        if depth < 0 or word == ";":
            return None
    return None


def _operand_end(text: TokenText, start: int) -> int:
    depth, i = 0, start
    while i < text.count and not (depth == 0 and (text.words[i] in _ENDS or text.words[i] == ":")):
        if text.words[i] == "<" and text.is_name(i - 1):
            closing = text.closing_angle(i)
            if closing is not None and text.words[closing + 1] in ("(", "{", "::"):
                i = closing
        depth += (text.words[i] in "([{") - (text.words[i] in ")]}")
        i += 1
    return i


def _lvalue_end(text: TokenText, start: int) -> int | None:
    """Behind an expression such as ``*a``, ``a[i].b`` or ``*(p)[i]``, or None."""
    i = start
    while text.words[i] == "*":
        i += 1
    dereferenced = i > start
    if text.words[i] == "(" and dereferenced:
        i = text.closing(i) + 1
    elif text.is_name(i) and text.words[i] not in _NOT_LVALUES:
        i += 1
    else:
        return None
    while True:
        if text.words[i] == "[":
            i = text.closing(i) + 1
            dereferenced = True
        elif text.words[i] in (".", "->") and text.is_name(i + 1) and i + 1 not in text.edits:
            i += 2
        else:
            return i if dereferenced else None


def _call_end(text: TokenText, start: int) -> int | None:
    """Behind ``name(...)``, ``name<...>(...)`` or ``space::name(...)``, or None."""
    if not text.is_name(start) or text.words[start] in ("sizeof", "true", "false"):
        return None
    i = start + 1
    while text.words[i] == "::" and text.is_name(i + 1):
        i += 2
    if text.words[i] == "<":
        closing = text.closing_angle(i)
        if closing is None:
            return None
        i = closing + 1
    return text.closing(i) + 1 if text.words[i] == "(" else None
