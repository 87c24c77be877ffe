"""Function constants and threadgroup variables: declarations that become calls of the runner."""

from __future__ import annotations

import re

from lbrx.base.fast_dataclass import dataclass
from lbrx.devices.metal.emulator.attributes import Attribute
from lbrx.devices.metal.emulator.tokens import TokenText, integer_constant

_QUALIFIERS = ("static", "constexpr", "const", "constant")


@dataclass(frozen=True, slots=True)
class FunctionConstant:
    """``constant int width [[function_constant(3)]]``: index 3, type int."""

    index: int
    type_name: str


def take_function_constant(
    text: TokenText, start: int, attribute_start: int, attribute_end: int, attribute: Attribute
) -> tuple[str, FunctionConstant] | None:
    """The name and record of a function constant whose declaration begins at ``start``; its value is read at load."""
    words = text.words
    argument = text.raw(*attribute.arguments) if attribute.arguments else ""
    try:
        index = integer_constant(argument)
    except ValueError:
        text.reject(attribute_start, f"the index of function_constant({argument}) is not an integer constant")
        return None
    first = start
    while words[first] in _QUALIFIERS:
        first += 1
    type_name = re.sub(r"\b(constant|const)\b", "", text.edited(first, attribute_start - 1)).strip()
    if "constant" not in words[start:attribute_start]:
        text.reject(attribute_start, "function constant must be declared in the constant address space")
    if words[attribute_end] != ";":
        text.reject(attribute_start, "function constant cannot have an initializer")
    text.delete(k for k in range(start, attribute_start) if words[k] == "constexpr")
    text.append(attribute_start - 1, f" = metal::__fc<{type_name}>({index})")
    return words[attribute_start - 1], FunctionConstant(index, type_name)


def take_threadgroup_variables(text: TokenText, start: int, variables: list[str]) -> None:
    """Rewrite ``threadgroup float a[32], b;`` so that the runner gives each variable its own guarded memory.

    Names are added to ``variables``; the runner speaks of them by their number there.
    """
    semicolon = text.statement_end(start)
    if semicolon is None:
        return
    end = _declarators_end(text, start + 1, semicolon)
    if end is None:
        return
    if end < semicolon:
        text.reject(start, "a variable in the threadgroup address space cannot have an initializer")
    parts = text.split(start + 1, end)
    if not parts:
        return
    first_name = _declared_name(text, *parts[0])
    if first_name is None:
        return
    type_name = text.edited(parts[0][0], first_name)
    pieces: list[str] = []
    for part in parts:
        name = _declared_name(text, *part)
        if name is None:
            return
        number = len(variables)
        variables.append(text.words[name])
        alias, key = f"__msl_tg{number}_t", f"__msl_tg{number}_k"
        pieces.append(
            f"typedef {type_name} {alias}{text.edited(name + 1, part[1])}; "
            f"static __msl_tgkey {key} = {{0, {number}, 0}}; "
            f"threadgroup {alias}& {text.words[name]} = "
            f"*(threadgroup {alias}*)__msl_tg_var(&{key}, sizeof({alias}), alignof({alias}));"
        )
    text.delete(range(start, semicolon + 1))
    text.edits[start] = "".join(pieces)


def _declarators_end(text: TokenText, start: int, semicolon: int) -> int | None:
    """Where the declarators end: at an initialiser or the semicolon. None for a pointer or reference."""
    depth = angles = 0
    for i in range(start, semicolon):
        word = text.words[i]
        if word in "([{":
            depth += 1
        elif word in ")]}":
            depth -= 1
        elif depth == 0 and word in "<>":
            angles += 1 if word == "<" else -1
        elif depth == 0 and angles == 0 and word in ("*", "&", "&&"):
            return None
        elif depth == 0 and angles == 0 and word == "=":
            return i
    return semicolon


def _declared_name(text: TokenText, start: int, end: int) -> int | None:
    """The last name before an array bound, outside template arguments."""
    angles, last = 0, None
    for i in range(start, end):
        word = text.words[i]
        if word in "<>":
            angles += 1 if word == "<" else -1
        elif word == "[" and angles == 0:
            break
        elif angles == 0 and text.is_name(i):
            last = i
    return last
